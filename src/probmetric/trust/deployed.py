"""Certify the answers of a deployed gallery, from labelled queries or from its own images.

A calibration set must look like deployment: queries of the same kind, asked in the same gallery. There are two kinds:

    queries      labelled images that are not in the gallery, asked in all of it
    left out     each gallery image asked among the others, if no other image is labelled; valid for queries from the
                 same source as the gallery's images

The unit of drawing (`probmetric.trust.certificates`) is the query if calibration shows the classes of the gallery. It
is the class if calibration shows only some: then the promise is for classes like these, and you need many of them.
Strangers of deployment are of other classes than those of calibration. So where calibration has several classes of
strangers, each of these classes is drawn as a whole. Strangers of a single class (a folder of all) count as queries.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from probmetric.io import digest_of
from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Doubles, Ints
from probmetric.trust.answers import Answers, among_others, asked_in, some_among_others
from probmetric.trust.certificates import Certificate, CertificateError, certify
from probmetric.trust.copies import NEARER, copies_of, distinct, find_themselves, same_picture
from probmetric.trust.p_right import PRight

log = logging.getLogger(__name__)
Record = Mapping[str, Any]
Unit = Literal["auto", "query", "class"]
P_RIGHT = "p_right"
SHOWN = 0.9
BALANCED = 5  # mean queries per class from which their numbers are judged
REFERENCE = 1000
ASKED = 10_000  # images, drawn at random from a larger gallery, that are asked among the others
TURNS = 3  # searches for copies of copies


def certify_record(
    record: Record,
    gallery_labels: Any,
    *,
    risk: float,
    score: str | PRight = "disagreement",
    unit: Unit = "auto",
    **options: Any,
) -> Certificate:
    """Return a certificate from calibration answers, prepared for `certify`.

    Args:
        record: arrays (Q,) of the answers, from `Answers.tensors` or a run's match record (`RunFolder.matches`).
        gallery_labels: (N,) classes of the gallery.
        risk: share of wrong answers allowed among those given.
        score: the doubt that decides: a score of the answers, `own`, several joined by commas (the pilot chooses one),
            or a map fitted to other answers, for 1 - P(right).
        unit: what is drawn independently; `auto` decides by the share of the gallery's classes that calibration shows,
            and draws strangers by class.
        options: further arguments of `certify`; `groups` (Q,) replaces `unit`.

    Raises:
        CertificateError: no answers, too few, or a score that they lack; the message says what is needed.
    """
    if not record["asked"].any():
        raise CertificateError(
            "no calibration query has an image of its class in the gallery, so no answer can be right; calibrate with "
            "images of the gallery's classes."
        )
    doubts = {name.removeprefix("doubt."): values for name, values in record.items() if name.startswith("doubt.")}
    doubts = {"own": record["own"], **doubts}
    by: dict[str, str | PRight]
    by = {P_RIGHT: score} if isinstance(score, PRight) else {name: name for name in score.split(",")}
    deciding = {name: decided_by(each, doubts) for name, each in by.items()}
    classes, sources = np.unique(arrays.to_numpy(gallery_labels)), options.get("groups")
    drawn, valid_for = _drawn(record["label"], classes, unit, options)
    if options.get("importance") is not None:
        valid_for += "; each class is asked about as often as its share says"
    facts: dict[str, Any] = {
        "p_right": score.plain() if isinstance(score, PRight) else None,
        "gallery_classes": len(classes),
        "valid_for": valid_for,
    }
    certificate = certify(deciding, record["right"], risk=risk, **facts, **(options | drawn))
    rows = _as_deployed(len(record["label"]), sources, options.get("importance"))
    return replace(certificate, reference=tuple(deciding[certificate.score][rows].tolist()))


def _drawn(labels: Ints, classes: Ints, unit: Unit, options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return options of `certify` with the groups that are drawn, and the queries it is valid for, in words.

    Args:
        labels: (Q,) classes of the calibration queries.
        classes: (C,) classes of the gallery.
        unit: as for `certify_record`.
        options: options of `certify` that the user set; `groups` among them are drawn.
    """
    if options.get("groups") is not None:
        count = len(np.unique(arrays.to_numpy(options["groups"])))
        return {}, f"queries in groups like the {count} that calibration shows"
    shown, strange = len(np.intersect1d(labels, classes)), ~np.isin(labels, classes)
    if unit == "class" or (unit == "auto" and shows_some(labels, classes)):
        like = f"queries of classes like the {shown} that calibration shows, of the {len(classes)} of this gallery"
        return {"groups": labels, "noun": "classes"}, like
    classes_shown = f"{shown} of the {len(classes)} classes of this gallery"
    valid_for = f"queries drawn as the calibration queries were, which show {classes_shown}"
    drawn: dict[str, Any] = {}
    strangers, numbers = np.unique(labels[strange], return_inverse=True)
    if unit == "auto" and 1 < len(strangers) < len(numbers):
        groups = np.arange(len(labels))
        groups[strange] = len(labels) + numbers
        drawn = {"groups": groups, "noun": "queries and classes of strangers"}
        valid_for += f", and strangers of classes like the {len(strangers)} that they show"
    if "importance" not in options and _balanced(labels):
        valid_for += ", each about as often: where deployment has some more often, name their shares"
    return drawn, valid_for


def _as_deployed(count: int, sources: Any, importance: Any) -> Ints:
    """Return rows of calibration queries that are a sample of deployment, `REFERENCE` at most, in any order.

    Args:
        count: number Q of calibration queries.
        sources: (Q,) source of each query, of which only the first query counts, as in a monitor; None: all count.
        importance: (Q,) how many queries of deployment each stands for; one that stands for few is seldom kept.
    """
    first = np.arange(count) if sources is None else np.unique(arrays.to_numpy(sources), return_index=True)[1]
    generator = np.random.default_rng(0)
    rows = generator.permutation(first)
    if importance is not None:
        weights = arrays.vector(importance, "importance")[rows]
        rows = rows[generator.random(len(rows)) * weights.max() < weights]
    return rows[:REFERENCE]


def shows_some(labels: Any, gallery_labels: Any) -> bool:
    """Say whether calibration queries of classes `labels` (Q,) show only some of the gallery's classes (N,)."""
    classes = np.unique(gallery_labels)
    return len(np.intersect1d(labels, classes)) < SHOWN * len(classes)


def _balanced(labels: Any) -> bool:
    """Say whether all classes (Q,) are asked equally often, apart from chance; in deployment this is rare."""
    counts = np.unique(labels, return_counts=True)[1]
    return bool(len(counts) > 1 and counts.mean() >= BALANCED and counts.var(ddof=1) <= 1.5 * counts.mean())


def decided_by(score: str | PRight, doubts: Mapping[str, Any]) -> Doubles:
    """Return the doubt (Q,) of answers by a score, or by 1 - P(right), from their `doubts`, score -> (Q,).

    Raises:
        CertificateError: the answers lack the score.
    """
    if isinstance(score, PRight):
        return 1.0 - score.probability(doubts)
    if score not in doubts:
        needed = "a map fitted to other answers" if score == P_RIGHT else f"one of {', '.join(sorted(doubts))}"
        raise CertificateError(f"the answers have no score {score!r}; name {needed}.")
    return arrays.vector(doubts[score], score)


def certified_doubt(certificate: Certificate, doubts: Mapping[str, Any]) -> Doubles:
    """Return the doubt (Q,) by which the certificate decides, from `doubts` as for `decided_by`, with its errors."""
    return decided_by(PRight.of(certificate.p_right) if certificate.p_right else certificate.score, doubts)


def calibration_answers(
    gallery: Record, labels: Any, queries: Record | None = None, query_labels: Any = None, *, trained_on: Any = None
) -> Answers:
    """Return the answers to the calibration queries, or to each gallery image asked among the others.

    Args:
        gallery: record of the gallery: mean (N,M), uncertainty (N,).
        labels: (N,) classes.
        queries: record of the queries: mean (Q,M), uncertainty (Q,); None for the gallery's own images.
        query_labels: (Q,) classes of the queries, numbered as the gallery's; a class that it lacks has its own number
            below 0.
        trained_on: (T,M) embeddings of the training images, which the model answers too well. They are refused among
            the queries and left out among the gallery's own images. Copies count once.

    Raises:
        CertificateError: a gallery or calibration set that cannot calibrate; a calibration image that is also in the
            gallery.
    """
    if queries is None:
        return _left_out(gallery, labels, trained_on)
    _check_gallery(gallery, labels)
    if not len(queries["mean"]):
        raise CertificateError("the calibration set is empty; label some queries that are not in the gallery.")
    answers = asked_in(queries, query_labels, gallery, labels)
    if trained_on is not None:
        check_held_out(copies_of(queries["mean"], trained_on))
    copies = np.flatnonzero(find_themselves(answers.match.similarity, arrays.to_numpy(queries["mean"]).shape[1]))
    if len(copies):
        raise CertificateError(
            f"{len(copies)} of {len(queries['mean'])} calibration images are in the gallery too, the first is number "
            f"{copies[0]}; they find themselves. Take them out of one of the two."
        )
    warn_of_themselves(answers.match.similarity)
    once = distinct(queries["mean"])
    if len(once) < len(answers.right):
        count = len(answers.right)
        log.warning("%d of %d calibration images are copies of others; each counts once", count - len(once), count)
        answers = answers.rows(np.isin(np.arange(count), once))
    return answers


def warn_of_themselves(similarity: Array) -> None:
    """Warn if queries seem to find themselves, rounded or compressed; `similarity` (Q, k) is best first."""
    apart = 1.0 - similarity[:, :2].astype(np.float64)
    if apart.shape[1] == 2 and np.median(apart[:, 0] - NEARER * apart[:, 1]) < 0:
        log.warning(
            "half of the %d calibration queries are %g times nearer to their first image than to their second: does "
            "the gallery hold them, rounded or compressed? Then take them out of one, or nothing is certified",
            *(len(apart), 1 / NEARER),
        )


def check_held_out(trained: Any) -> None:
    """Refuse calibration with images that the model was trained on.

    Args:
        trained: (Q,) whether the model was trained on each image.

    Raises:
        CertificateError: the model was trained on one or more.
    """
    count = int(np.sum(trained))
    if count:
        raise CertificateError(
            f"{count} of {len(trained)} calibration images are images that the model was trained on, which "
            "it answers better than any new one. Calibrate with images that were held out."
        )


def _left_out(gallery: Record, labels: Any, trained_on: Any = None) -> Answers:
    """Return the answers to the gallery's images (at most `ASKED`, drawn at random), each asked among the others.

    An image alone in its class is not asked: it has no right answer, but a query of that class has one. Copies count as
    one image, which does not find itself.
    """
    _check_gallery(gallery, labels)
    classes, mean = arrays.to_numpy(labels), arrays.to_numpy(gallery["mean"])
    rows = np.arange(len(classes))
    if len(rows) > ASKED:
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:ASKED])
    whole = len(rows) == len(classes)
    answers = among_others(gallery, classes) if whole else some_among_others(gallery, classes, rows)
    count = len(rows)
    answers, rows = _without_copies(answers, gallery, classes, rows)
    if len(rows) < count:
        log.warning(
            "the gallery holds %d image(s) that are copies of others; each picture is asked once", count - len(rows)
        )
    kept = answers.asked
    if trained_on is not None:
        trained = copies_of(mean[rows], trained_on)
        log.warning("%d of %d images of the gallery were trained on and calibrate nothing", trained.sum(), len(trained))
        kept = kept & ~trained
    if not kept.any():
        raise CertificateError(
            "no image of the gallery can calibrate: each is alone in its class, a copy of another, or was trained on. "
            "Calibrate with labelled queries that are not in it."
        )
    return answers.rows(kept)


def _without_copies(answers: Answers, gallery: Record, classes: Array, rows: Ints) -> tuple[Answers, Ints]:
    """Return answers to the first row of each picture among other pictures, and these rows.

    Copies are found in the lists of the nearest. A picture whose list is still full of copies after `TURNS` searches is
    left out.
    """
    ignore, width = np.empty((0, 2), dtype=np.int64), arrays.to_numpy(gallery["mean"]).shape[1]
    for turn in range(TURNS + 1):
        query, place = np.nonzero(same_picture(answers.match.similarity, width))
        if not len(query):
            break
        copy = answers.match.indices[query, place]
        ignore = np.concatenate([ignore, np.stack([query, copy], axis=1)])
        out = query[copy < rows[query]] if turn < TURNS else query
        kept = ~np.isin(np.arange(len(rows)), out)
        kept &= np.bincount(ignore[:, 0], minlength=len(rows)) < len(classes) - 1
        if turn == TURNS or not kept.any():
            return answers.rows(kept), rows[kept]
        ignore = ignore[kept[ignore[:, 0]]]
        ignore[:, 0], rows = (np.cumsum(kept) - 1)[ignore[:, 0]], rows[kept]
        answers = some_among_others(gallery, classes, rows, ignore)
    return answers, rows


def _check_gallery(gallery: Record, labels: Any) -> None:
    if labels is None or (len(labels) and arrays.to_numpy(labels).min() < 0):
        raise CertificateError(
            "the gallery has images without a class, so nobody can say whether an answer is right; name their classes "
            "(one folder per class) or leave them out."
        )
    classes = len(np.unique(arrays.to_numpy(labels)))
    if classes < 2:
        raise CertificateError(
            f"the gallery shows {classes} class; every answer has it. A certificate needs at least 2."
        )


def records_digest(rows: Any, class_names: Sequence[str]) -> str:
    """Return the SHA-256 of numbers (N, ...) and names of classes (N,), which identifies a calibration set."""
    numbers = np.ascontiguousarray(arrays.to_numpy(rows), dtype=np.float32)
    digest = hashlib.sha256(digest_of([numbers.shape, list(class_names)]).encode())
    digest.update(numbers.data)
    return digest.hexdigest()
