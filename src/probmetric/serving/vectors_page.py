"""Write one HTML page about vectors of any model: which answers to believe. It loads no other files.

retrieval      the vectors as they are, and whitened
scores         how well each doubt tells wrong answers from right ones
certificates   share answered at several risks, on the curve of risk against coverage
P(right)       stated probability against the share that was right
strangers      queries whose class is not in the gallery
labels         rows that are nearer to another class than to their own
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.io import write_text
from probmetric.metrics import arrays
from probmetric.metrics.calibration import reliability
from probmetric.metrics.ood import auroc
from probmetric.metrics.selective import accuracy_by_coverage
from probmetric.reporting.words import count_words, templates
from probmetric.serving.gallery import Gallery
from probmetric.serving.vectors import Vectors
from probmetric.trust.answers import Answers, asked_in
from probmetric.trust.certificates import Certificate, CertificateError, TooFewError
from probmetric.trust.deployed import calibration_answers
from probmetric.trust.labels import contradictory_copies, suspect_labels
from probmetric.trust.p_right import cross_fitted, p_right_metrics

RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
STRANGE = 0.2  # share of the classes that are taken out of the gallery as strangers
LARGEST_WHITENED = 4096  # dimensions
ASKED = 10_000  # rows of a larger gallery that are asked in the whitened and in the strangers part
SUSPECTS = 20
GENERATOR = '<meta name="generator" content="probmetric report">'


def write_page(
    gallery: Gallery,
    output: Path,
    title: str,
    step: Callable[[str], None] = lambda _: None,
    queries: Vectors | None = None,
) -> Path:
    """Write the page of a gallery.

    Args:
        gallery: labelled vectors.
        output: HTML file.
        title: name of the vectors.
        step: called with the name of the next computation.
        queries: labelled calibration queries; None: the gallery's rows, each asked among the others.

    Raises:
        CertificateError: rows have no class, or there is one class only.
    """
    step("asking each vector among the others" if queries is None else "asking the calibration queries")
    calibration = () if queries is None else (None, queries.rows, queries.labels)
    answers = gallery.left_out if queries is None else gallery.asked(*calibration)
    step("certificates")
    groups = None if queries is None else queries.groups
    certificates = _certificates(gallery.promises(*calibration, groups=groups, score=None))
    stated = _stated(answers)
    sections: dict[str, Callable[[], Any]] = {
        "lead": lambda: _lead(gallery, answers, certificates),
        "certified": lambda: _certified(answers, stated, certificates),
        "scores": lambda: _scores(answers),
        "probability": lambda: _probability(answers, stated),
    }
    if not gallery.elsewhere:  # these parts need vectors
        sections |= {
            "retrieval": lambda: _retrieval(gallery),
            "of_strangers": lambda: _strangers(gallery),
            "labels": lambda: _labels(gallery),
        }
    shown: dict[str, Any] = dict.fromkeys(("retrieval", "of_strangers", "labels"))
    for name, section in sections.items():
        step(name)
        shown[name] = section()
    facts = {"title": title, "gallery": gallery, "among": queries is None, "largest": RISKS[-1], "generator": GENERATOR}
    write_text(output, templates().get_template("vectors.html.j2").render(**facts, **shown))
    return output


def is_ours(path: Path) -> bool:
    """Say whether a file is a page of `write_page`."""
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(400)


def _certificates(certified: Callable[[float], Certificate]) -> list[Certificate]:
    """Return the certificates that can be made, risk by risk; they are not stored with the gallery."""
    made = []
    for risk in RISKS:
        with contextlib.suppress(TooFewError):
            made.append(certified(risk))
    return [certificate for certificate in made if certificate.threshold is not None]


def _strangers(gallery: Gallery) -> list[tuple[str, float]]:
    """Rank the free scores by how well they tell strangers, a fifth of the classes taken out of the gallery."""
    labels, rows = gallery.labels, gallery.record
    classes = np.unique(labels)
    if len(classes) < 5:
        return []
    generator = np.random.default_rng(0)
    strange = np.isin(labels, generator.permutation(classes)[: max(1, round(STRANGE * len(classes)))])
    drawn = ~strange & (generator.random(len(labels)) < min(STRANGE, ASKED / len(labels)))
    rest = np.flatnonzero(~strange & ~drawn)
    familiar = np.flatnonzero(drawn & np.isin(labels, labels[rest]))
    strangers = np.sort(generator.permutation(np.flatnonzero(strange))[:ASKED])
    if not len(familiar):
        return []  # each row is alone in its class
    searched = {name: np.asarray(values[rest]) for name, values in rows.items()}

    def doubts(chosen: np.ndarray, truth: np.ndarray) -> Mapping[str, np.ndarray]:
        record = {name: np.asarray(values[chosen]) for name, values in rows.items()}
        return asked_in(record, truth, searched, labels[rest]).free

    unknown, others = doubts(strangers, np.full(len(strangers), -1)), doubts(familiar, labels[familiar])
    return _ranked({name: auroc(doubt, unknown[name]) for name, doubt in others.items()})


def _lead(gallery: Gallery, answers: Answers, certificates: Sequence[Certificate]) -> dict[str, Any]:
    best = next((made for made in certificates if made.risk == 0.05), None) or next(iter(certificates), None)
    right, classes = answers.right, len(np.unique(gallery.labels))
    shown: dict[str, Any] = {"best": best, "asked": len(right), "classes": classes, "wrong_of_all": 1 - right.mean()}
    if best is not None:
        shown["answered"] = count_words(100 * best.coverage)
        shown["wrong"] = count_words(100 * best.coverage * best.errors / max(best.answered, 1))
    return shown


def _retrieval(gallery: Gallery) -> list[list[Any]]:
    """Measure retrieval of the gallery's rows, each asked among the others; of many rows a sample, without MAP@R."""
    spaces: dict[str, Answers] = {}
    with contextlib.suppress(CertificateError):  # each row is alone in its class
        spaces["as they are"] = gallery.left_out
        if gallery.dim <= LARGEST_WHITENED:
            whitened = {**gallery.record, "mean": _whitened(gallery.record["mean"])}
            spaces["whitened"] = calibration_answers(whitened, gallery.labels)
    whole = all(answers.retrieval for answers in spaces.values())
    return [
        [name, float(answers.right.mean()), *([float(answers.retrieval["map_at_r"].mean())] if whole else [])]
        for name, answers in spaces.items()
    ]


def _whitened(mean: np.ndarray) -> np.ndarray:
    """Return unit rows (N, M) with equal variance in all directions, regularised by a tenth of the mean variance."""
    some = np.asarray(mean[np.sort(np.random.default_rng(0).permutation(len(mean))[:ASKED])])
    centre = some.mean(axis=0)
    values, vectors = np.linalg.eigh((some - centre).T @ (some - centre) / len(some))
    turn = (vectors / np.sqrt(np.maximum(values, 0) + 0.1 * values.mean())).astype(np.float32)
    whitened = np.empty(mean.shape, dtype=np.float32)
    for start in range(0, len(mean), ASKED):
        whitened[start : start + ASKED] = arrays.normalized((mean[start : start + ASKED] - centre) @ turn)
    return whitened


def _certified(answers: Answers, stated: np.ndarray | None, certificates: Sequence[Certificate]) -> dict[str, Any]:
    dots = [(made.coverage, made.errors / max(made.answered, 1)) for made in certificates]
    rows = [
        [f"{100 * made.risk:g} %", f"{100 * answered:.1f} %", f"{100 * wrong:.1f} %"]
        for made, (answered, wrong) in zip(certificates, dots, strict=True)
    ]
    usual = answers.free.get("disagreement", answers.free["cosine"]) if stated is None else 1 - stated
    decides = next((made.score for made in certificates), "")
    doubt = answers.free.get(decides, usual)
    accuracy = accuracy_by_coverage(doubt, answers.right.astype(np.float64))
    coverage = np.arange(1, len(accuracy) + 1) / len(accuracy)
    drawn = np.unique(np.linspace(0, len(accuracy) - 1, 200).astype(int))
    return {"rows": rows, "dots": dots, "line": list(zip(coverage[drawn], 1 - accuracy[drawn], strict=True))}


def _stated(answers: Answers) -> np.ndarray | None:
    """Return P(right) of each answer, by a map fitted to other classes; None if that cannot be fitted."""
    with contextlib.suppress(ValueError):
        return np.asarray(cross_fitted(answers.free, answers.right, answers.label))
    return None


def _scores(answers: Answers) -> list[tuple[str, float]]:
    if not answers.mixed:
        return []
    return _ranked({name: auroc(doubt[answers.right], doubt[~answers.right]) for name, doubt in answers.free.items()})


def _ranked(values: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return scores and their AUROC, the largest first."""
    return sorted(values.items(), key=lambda item: -item[1])


def _probability(answers: Answers, stated: np.ndarray | None) -> dict[str, Any]:
    if stated is None:
        return {}
    bins = reliability(stated, answers.right)
    dots = list(zip(bins.confidence, bins.accuracy, strict=True))
    return {"dots": dots, "ece": p_right_metrics(stated, answers.right)["ece"]}


def _labels(gallery: Gallery) -> dict[str, Any]:
    suspected = suspect_labels(gallery.record["mean"], gallery.class_names)
    shown = [row for row in suspected.order[:SUSPECTS].tolist() if suspected.suspicion[row] > 0]
    rows = [
        [gallery.paths[row], gallery.class_names[row], suspected.proposed[row], float(suspected.suspicion[row])]
        for row in shown
    ]
    pairs = contradictory_copies(gallery.record["mean"], gallery.class_names)
    twice = [[f"{gallery.paths[row]} ({gallery.class_names[row]})" for row in pair] for pair in pairs[:SUSPECTS]]
    return {"count": suspected.count, "rows": rows, "pairs": len(pairs), "twice": twice}
