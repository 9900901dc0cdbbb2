"""Trust in the answers of a deployed gallery: P(right) for its queries, and a certificate from labelled ones.

A calibration set must look like deployment: queries of the same kind, asked in the same gallery. Two kinds are at hand:

    queries      labelled images that are not in the gallery, asked in all of it
    left out     each gallery image asked among the others, where nothing else is labelled; valid for queries that come
                 from the same source as the gallery's own images

What is the unit that is drawn (`probmetric.trust.certificates`)? Queries, if calibration shows the classes of the
gallery; classes, if it shows only some of them: then it speaks for classes like these, of which there must be many.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays
from probmetric.trust.answers import Answers, among_others, asked_in
from probmetric.trust.certificates import Certificate, CertificateError, certify
from probmetric.trust.p_right import PRight, fit_p_right

log = logging.getLogger(__name__)
Doubles = NDArray[np.float64]
Unit = Literal["auto", "query", "class"]
P_RIGHT = "p_right"
SHOWN = 0.9
REFERENCE = 1000
BLOCK_ROWS = 16_384
SAME = 1e-5  # largest difference of the coordinates of one image, embedded in different batches


def deployed_p_right(gallery: Mapping[str, Any], labels: Any) -> PRight:
    """The map from free scores to P(right), fitted to each gallery image asked among the others.

    Args:
        gallery: record of the gallery's images: mean (N,M), uncertainty (N,).
        labels: (N,) their classes, from 0 up.

    Raises:
        CertificateError: too few images, one class, or no two images of a class.
    """
    found = _left_out(gallery, labels)
    return fit_p_right(found.free, found.right)


def certify_record(
    record: Mapping[str, Any],
    gallery_labels: Any,
    *,
    risk: float,
    confidence: float = 0.9,
    score: str = "",
    p_right: PRight | None = None,
    unit: Unit = "auto",
    seed: int = 0,
    **facts: Any,
) -> Certificate:
    """Return a certificate from calibration answers, prepared for `certify`.

    Args:
        record: arrays (Q,) of the answers, of `Answers.tensors` or of a run's match record (`RunFolder.matches`).
        gallery_labels: (N,) classes of the gallery.
        risk: share of wrong answers allowed among those given.
        confidence: chance that the promise holds.
        score: the doubt to decide by: a score of the answers, `own`, or `p_right`, 1 - P(right); by default `p_right`
            with a map, else `disagreement`.
        p_right: map for `p_right`; fitted to other answers than these.
        unit: what is drawn independently; `auto` decides by the share of the gallery's classes that calibration shows.
        seed: of the pilot.
        facts: further fields of the certificate.

    Raises:
        CertificateError: no answers, a score that they do not have, or too few of them; says what is needed.
    """
    if not record["asked"].any():
        raise CertificateError(
            "no calibration query has an image of its class in the gallery, so no answer can be right; calibrate with "
            "images of the gallery's classes."
        )
    doubts = {name.removeprefix("doubt."): values for name, values in record.items() if name.startswith("doubt.")}
    doubts["own"] = record["own"]
    score = score or (P_RIGHT if p_right else "disagreement")
    if score == P_RIGHT and p_right is None:
        raise CertificateError("score 'p_right' needs a map fitted to other answers; name another score.")
    if score != P_RIGHT and score not in doubts:
        raise CertificateError(f"the answers have no score {score!r}; they have {', '.join(sorted(doubts))}.")
    fitted = p_right if score == P_RIGHT else None
    doubt = decided_by(score, fitted, doubts)
    shown, classes = np.unique(record["label"]), np.unique(arrays.to_numpy(gallery_labels))
    partly = len(np.intersect1d(shown, classes)) < SHOWN * len(classes)
    by_class = partly if unit == "auto" else unit == "class"
    drawn = np.random.default_rng(seed).permutation(len(doubt))[:REFERENCE]
    return certify(
        doubt,
        record["right"],
        risk=risk,
        confidence=confidence,
        groups=record["label"] if by_class else None,
        seed=seed,
        score=score,
        p_right=fitted.plain() if fitted else None,
        reference=tuple(doubt[drawn].tolist()),
        gallery_classes=len(classes),
        valid_for=_valid_for(by_class, len(shown), len(classes)),
        **facts,
    )


def _valid_for(by_class: bool, shown: int, classes: int) -> str:
    if by_class:
        return f"queries of classes like the {shown} that calibration shows, of the {classes} of this gallery"
    return f"queries drawn as the calibration queries were, which show {shown} of the {classes} classes of this gallery"


def decided_by(score: str, p_right: PRight | None, doubts: Mapping[str, Any]) -> Doubles:
    """The doubt (Q,) that a certificate decides by, from the scores of the answers."""
    if p_right is not None:
        return 1.0 - p_right.probability(doubts)
    return arrays.vector(doubts[score], score)


def certified_doubt(certificate: Certificate, doubts: Mapping[str, Any]) -> Doubles:
    """The doubt (Q,) of answers with these `doubts`, score -> (Q,), that the certificate decides by.

    Raises:
        CertificateError: the answers lack the certificate's score.
    """
    if certificate.p_right is None and certificate.score not in doubts:
        raise CertificateError(
            f"the certificate decides by {certificate.score!r}; these answers have {sorted(doubts)}."
        )
    return decided_by(certificate.score, PRight.of(certificate.p_right) if certificate.p_right else None, doubts)


def calibration_answers(
    gallery: Mapping[str, Any],
    labels: Any,
    queries: Mapping[str, Any] | None = None,
    query_labels: Any = None,
) -> Answers:
    """The answers to the calibration queries, or to each gallery image asked among the others.

    Args:
        gallery: record of the gallery: mean (N,M), uncertainty (N,).
        labels: (N,) classes.
        queries: record of the queries: mean (Q,M), uncertainty (Q,); None for the gallery's own images.
        query_labels: (Q,) their classes, numbered as the gallery's; -1 for a class that is not in it.

    Raises:
        CertificateError: a gallery or calibration set nothing can be said of; a calibration image that is in the
            gallery too.
    """
    if queries is None:
        return _left_out(gallery, labels)
    _check_gallery(gallery, labels)
    if not len(queries["mean"]):
        raise CertificateError("the calibration set is empty; label some queries that are not in the gallery.")
    answers = asked_in(queries, query_labels, gallery, labels)
    copies = np.flatnonzero(_copies(queries, gallery, answers))
    if len(copies):
        raise CertificateError(
            f"{len(copies)} of {len(queries['mean'])} calibration images are in the gallery too, the first is number "
            f"{copies[0]}; they find themselves. Take them out of one of the two."
        )
    return answers


def _left_out(gallery: Mapping[str, Any], labels: Any) -> Answers:
    _check_gallery(gallery, labels)
    found = among_others(gallery, labels)
    # Alone in its class an image cannot be found, but a query of that class can; a copy finds its copy, no query does.
    copies = _copies(gallery, gallery, found)
    if copies.any():
        log.warning(
            "%d of %d images of the gallery are copies of others and calibrate nothing", copies.sum(), len(copies)
        )
    found = found.rows(found.asked & ~copies)
    if not found.mixed:
        raise CertificateError(
            "asked among the others, the gallery's images are all right, all wrong, or alone in their class: nothing "
            "can be told apart. Calibrate with labelled queries that are harder, or easier, or more."
        )
    return found


def _copies(queries: Mapping[str, Any], gallery: Mapping[str, Any], answers: Answers) -> NDArray[np.bool_]:
    """Which of the queries (Q,) are the very image that answers them."""
    asked, rows = arrays.to_numpy(queries["mean"]), arrays.to_numpy(gallery["mean"])
    nearest = answers.match.indices[:, 0]
    parts = [slice(start, start + BLOCK_ROWS) for start in range(0, len(asked), BLOCK_ROWS)]
    return np.concatenate([np.abs(asked[part] - rows[nearest[part]]).max(axis=1) <= SAME for part in parts])


def _check_gallery(gallery: Mapping[str, Any], labels: Any) -> None:
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


def records_digest(mean: Any, labels: Any) -> str:
    """SHA-256 of embeddings (N,M) and classes (N,): which gallery, or calibration set, a certificate is about."""
    rows = np.ascontiguousarray(arrays.to_numpy(mean), dtype=np.float32)
    digest = hashlib.sha256(f"{rows.shape}".encode())
    digest.update(rows.tobytes())
    digest.update(np.ascontiguousarray(arrays.to_numpy(labels), dtype=np.int64).tobytes())
    return digest.hexdigest()


def answer_doubts(
    gallery: Mapping[str, Any], labels: Any, queries: Mapping[str, Any]
) -> tuple[dict[str, Doubles], NDArray[np.int64]]:
    """Scores of new queries in the gallery, score -> (Q,) with `own`, and the row of each answer (Q,)."""
    found = asked_in(queries, np.full(len(queries["mean"]), -1), gallery, labels)
    return {"own": found.own, **found.doubts}, found.match.indices[:, 0]
