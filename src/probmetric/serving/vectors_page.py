"""Write one page about vectors of any model: which answers to believe. HTML with drawings, nothing is fetched.

retrieval      the vectors as they are, and whitened
scores         which doubt tells wrong answers from right ones
certificates   share answered at several risks, on the curve of risk against coverage
P(right)       stated probability against the share that was right
strangers      queries whose class is not in the gallery
labels         rows that are nearer to another class than to their own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.io import write_text
from probmetric.metrics.calibration import reliability
from probmetric.metrics.ood import auroc
from probmetric.metrics.selective import accuracy_by_coverage
from probmetric.retrieval import retrieval_metrics
from probmetric.serving.gallery import Gallery
from probmetric.trust.answers import Answers, asked_in
from probmetric.trust.certificates import Certificate, CertificateError
from probmetric.trust.labels import suspect_labels
from probmetric.trust.p_right import cross_fitted, p_right_metrics

RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
STRANGE = 0.2  # share of the classes that are taken out of the gallery to play strangers
LARGEST_WHITENED = 4096  # dimensions
SUSPECTS = 20
WIDTH, HEIGHT, MARGIN = 420, 280, 40
GENERATOR = '<meta name="generator" content="probmetric report">'
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { line-height: 1.2; }
table { border-collapse: collapse; }
td, th { padding: .25rem .9rem .25rem 0; text-align: left; border-bottom: 1px solid #8884; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; }
.lead { font-size: 1.25rem; }
.wide { overflow-x: auto; }
"""


@dataclass(frozen=True)
class Contents:
    """What the page shows.

    Attributes:
        gallery: the vectors.
        answers: each row asked among the others.
        certificates: those that could be made, by risk.
        strangers: the answers to rows whose class was taken out of the gallery, and to others; None with few classes.
    """

    gallery: Gallery
    answers: Answers
    certificates: Sequence[Certificate]
    strangers: tuple[Answers, Answers] | None


def write_page(gallery: Gallery, output: Path, title: str, step: Callable[[str], None] = lambda _: None) -> Path:
    """Write the page of a gallery.

    Args:
        gallery: labelled vectors.
        output: HTML file.
        title: name of the vectors.
        step: is told what is computed next.

    Raises:
        CertificateError: rows without a class, or one class.
    """
    step("asking each vector among the others")
    answers = gallery.left_out
    step("certificates")
    certificates = [made for risk in RISKS if (made := _certificate(gallery, risk)) is not None]
    step("strangers")
    contents = Contents(gallery, answers, certificates, _strangers(gallery))
    sections = (_lead, _retrieval, _certified, _scores, _probability, _of_strangers, _labels)
    parts = []
    for section in sections:
        step(section.__name__.strip("_"))
        parts.append(section(contents))
    viewport = '<meta name="viewport" content="width=device-width">'
    head = f'<meta charset="utf-8">{GENERATOR}{viewport}<title>{escape(title)}</title>'
    body = f"<h1>{escape(title)}: which answers to believe</h1>{''.join(parts)}"
    write_text(output, f"<!doctype html><html lang=en>{head}<style>{STYLE}</style><body>{body}</body></html>\n")
    return output


def is_ours(path: Path) -> bool:
    """Return whether a file is a page of `write_page`."""
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(400)


def _certificate(gallery: Gallery, risk: float) -> Certificate | None:
    """Return a certificate that is not kept with the gallery; None where nothing is certified."""
    kept = list(gallery.certificates)
    try:
        made = gallery.certify(risk=risk)
    except CertificateError:
        return None
    finally:
        gallery.certificates = kept
    return made if made.threshold is not None else None


def _strangers(gallery: Gallery) -> tuple[Answers, Answers] | None:
    """Return the answers to strangers and to the others, where a fifth of the classes is taken out of the gallery."""
    labels, rows = gallery.labels, gallery.record
    classes = np.unique(labels)
    if len(classes) < 5:
        return None
    generator = np.random.default_rng(0)
    strange = np.isin(labels, generator.permutation(classes)[: max(1, round(STRANGE * len(classes)))])
    asked = ~strange & (generator.random(len(labels)) < STRANGE)
    rest = ~strange & ~asked
    shown = np.isin(labels, labels[rest])
    parts = [
        {name: np.asarray(values[chosen]) for name, values in rows.items()} for chosen in (strange, asked & shown, rest)
    ]
    known = labels[asked & shown]
    stranger_answers = asked_in(parts[0], np.full(len(parts[0]["mean"]), -1), parts[2], labels[rest])
    return stranger_answers, asked_in(parts[1], known, parts[2], labels[rest])


def _lead(contents: Contents) -> str:
    gallery, right = contents.gallery, contents.answers.right
    alone = f"Answering all of them would be wrong for {100 * (1 - right.mean()):.0f} of 100."
    best = next((made for made in contents.certificates if made.risk == 0.05), None)
    best = best or next(iter(contents.certificates), None)
    if best is None:
        promise = f"No risk up to {RISKS[-1]:g} can be certified with these vectors."
    else:
        wrong = 100 * best.coverage * best.errors / max(best.answered, 1)
        promise = (
            f"Of 100 questions {100 * best.coverage:.0f} are answered, {wrong:.1f} of them wrongly: at most "
            f"{100 * best.risk:g} % of the answers given are wrong, with confidence {best.confidence:g}."
        )
    facts = f"{len(gallery):,} vectors of {gallery.dim} dimensions, {len(np.unique(gallery.labels)):,} classes."
    return f"<p class=lead>{promise} {alone}</p><p>{facts} Each row was asked among the others.</p>"


def _retrieval(contents: Contents) -> str:
    names = ("recall_at_1", "recall_at_4", "map_at_r")
    mean, labels = np.asarray(contents.gallery.record["mean"]), contents.gallery.labels
    rows = {"as they are": retrieval_metrics(mean, labels, ks=(1, 4))}
    if mean.shape[1] <= LARGEST_WHITENED:
        rows["whitened"] = retrieval_metrics(_whitened(mean), labels, ks=(1, 4))
    table = _table(
        ["vectors", "recall@1", "recall@4", "MAP@R"],
        [[row, *(values[name] for name in names)] for row, values in rows.items()],
    )
    return f"<h2>Retrieval</h2>{table}"


def _whitened(mean: np.ndarray) -> np.ndarray:
    """Return unit rows (N, M) with equal variance in all directions, but for a tenth of the mean variance."""
    centred = mean - mean.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    scaled = centred @ vectors / np.sqrt(np.maximum(values, 0) + 0.1 * values.mean())
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.asarray(scaled / np.where(length > 0, length, 1), dtype=np.float32)


def _certified(contents: Contents) -> str:
    rows = [
        [f"{100 * made.risk:g} %", f"{100 * made.coverage:.1f} %", f"{100 * made.errors / max(made.answered, 1):.1f} %"]
        for made in contents.certificates
    ]
    right = contents.answers.right
    doubt = 1 - _stated(contents.answers)
    accuracy = accuracy_by_coverage(doubt, right.astype(np.float64))
    coverage = np.arange(1, len(accuracy) + 1) / len(accuracy)
    drawn = np.unique(np.linspace(0, len(accuracy) - 1, 200).astype(int))
    points = [(made.coverage, made.errors / max(made.answered, 1)) for made in contents.certificates]
    curve = _drawing(
        list(zip(coverage[drawn], 1 - accuracy[drawn], strict=True)), points, "share answered", "share wrong"
    )
    table = _table(["promised: wrong at most", "answered", "wrong among them, measured"], rows) if rows else ""
    return f"<h2>Certificates</h2>{table}{curve}<p>The curve answers the surest first; dots are certified.</p>"


def _stated(answers: Answers) -> np.ndarray:
    """Return P(right) of each answer by a map that saw other classes; the negative gap where that cannot be fitted."""
    try:
        return np.asarray(cross_fitted(answers.free, answers.right, answers.label))
    except ValueError:
        return -np.asarray(next(iter(answers.free.values())))


def _scores(contents: Contents) -> str:
    answers = contents.answers
    values = {name: auroc(doubt[answers.right], doubt[~answers.right]) for name, doubt in answers.free.items()}
    rows = [[name, value] for name, value in sorted(values.items(), key=lambda item: -item[1])]
    return f"<h2>Scores that cost nothing</h2>{_table(['doubt', 'tells wrong answers (AUROC)'], rows)}"


def _probability(contents: Contents) -> str:
    stated, right = _stated(contents.answers), contents.answers.right
    if not 0 <= stated.min() <= stated.max() <= 1:
        return ""
    found = reliability(stated, right)
    points = list(zip(found.confidence, found.accuracy, strict=True))
    ece = p_right_metrics(stated, right)["ece"]
    picture = _drawing([(0.0, 0.0), (1.0, 1.0)], points, "stated P(right)", "share right")
    return f"<h2>P(right)</h2>{picture}<p>Calibration error {ece:.3f}; the map was fitted to other classes.</p>"


def _of_strangers(contents: Contents) -> str:
    if contents.strangers is None:
        return ""
    strange, known = contents.strangers
    rows: list[list[Any]] = []
    for name, doubt in known.free.items():
        rows.append([name, auroc(doubt, strange.doubts[name])])
    rows.sort(key=lambda row: -row[1])
    return (
        "<h2>Strangers</h2><p>A fifth of the classes was taken out of the gallery; their rows are strangers.</p>"
        + _table(["doubt", "tells strangers from known (AUROC)"], rows)
    )


def _labels(contents: Contents) -> str:
    gallery = contents.gallery
    suspected = suspect_labels(gallery.record["mean"], gallery.class_names)
    shown = [row for row in suspected.order[:SUSPECTS].tolist() if suspected.suspicion[row] > 0]
    rows = [
        [gallery.paths[row], gallery.class_names[row], suspected.proposed[row], float(suspected.suspicion[row])]
        for row in shown
    ]
    text = f"<h2>Labels to look at</h2><p>{suspected.count} rows are nearer to another class than to their own.</p>"
    return text + _table(["row", "label", "nearer to", "by (cosine)"], rows) if rows else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return an HTML table; numbers have three digits after the point."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<div class=wide><table><tr>{titles}</tr>{body}</table></div>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"<td class=number>{value:.3f}</td>"
    return f"<td>{escape(str(value))}</td>"


def _drawing(line: Sequence[tuple[float, float]], dots: Sequence[tuple[float, float]], across: str, up: str) -> str:
    """Return a line and dots, in the unit square below the largest value, as SVG."""
    top = max(0.01, *(value for _, value in (*line, *dots))) if line or dots else 1.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return (
            MARGIN + point[0] * (WIDTH - 2 * MARGIN),
            HEIGHT - MARGIN - point[1] / top * (HEIGHT - 2 * MARGIN),
        )

    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, line))
    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#c33"/>' for x, y in map(place, dots))
    frame = f'<path d="M{MARGIN} {MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}" fill="none" stroke="currentColor"/>'
    words = (
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{across}</text>'
        f'<text x="{MARGIN}" y="{MARGIN - 14}">{up}, up to {top:.2f}</text>'
    )
    line_text = f'<polyline points="{path}" fill="none" stroke="#36c" stroke-width="2"/>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" fill="currentColor" font-size="13">'
        f"{frame}{line_text}{circles}{words}</svg>"
    )
