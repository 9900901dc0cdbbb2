"""Write one page about vectors of any model: which answers to believe. HTML with drawings, nothing is fetched.

retrieval      the vectors as they are, and whitened
scores         which doubt tells wrong answers from right ones
certificates   share answered at several risks, on the curve of risk against coverage
P(right)       stated probability against the share that was right
strangers      queries whose class is not in the gallery
labels         rows that are nearer to another class than to their own
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.io import write_text
from probmetric.metrics.calibration import reliability
from probmetric.metrics.ood import auroc
from probmetric.metrics.selective import accuracy_by_coverage
from probmetric.reporting.words import count_words
from probmetric.retrieval import retrieval_metrics, search
from probmetric.serving.gallery import Gallery
from probmetric.serving.vectors import Vectors
from probmetric.trust.answers import Answers, asked_in
from probmetric.trust.certificates import Certificate, CertificateError
from probmetric.trust.labels import contradictory_copies, suspect_labels
from probmetric.trust.p_right import cross_fitted, p_right_metrics

RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
STRANGE = 0.2  # share of the classes that are taken out of the gallery to play strangers
LARGEST_WHITENED = 4096  # dimensions
ASKED = 10_000  # rows of a larger gallery that are asked once more: whitened, as strangers
SUSPECTS = 20
WIDTH, HEIGHT, MARGIN = 420, 280, 40
Doubts = Mapping[str, np.ndarray]
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
        answers: to the calibration queries, or to each row asked among the others.
        stated: P(right) of each answer by a map that saw other classes; None where that cannot be fitted.
        certificates: those that could be made, by risk.
        strangers: free doubts of rows whose class was taken out of the gallery, and of others; None with few classes.
        among: whether each row was asked among the others.
    """

    gallery: Gallery
    answers: Answers
    stated: np.ndarray | None
    certificates: Sequence[Certificate]
    strangers: tuple[Doubts, Doubts] | None
    among: bool = True


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
        step: is told what is computed next.
        queries: labelled queries that calibrate; None: the gallery's rows, each among the others.

    Raises:
        CertificateError: rows without a class, or one class.
    """
    step("asking each vector among the others" if queries is None else "asking the calibration queries")
    calibration = () if queries is None else (None, queries.rows, queries.labels)
    answers = gallery.left_out if queries is None else gallery.asked(*calibration)
    step("certificates")
    certificates = _certificates(gallery.promises(*calibration, groups=None if queries is None else queries.groups))
    step("strangers")
    strangers = None if gallery.elsewhere else _strangers(gallery)
    contents = Contents(gallery, answers, _stated(answers), certificates, strangers, queries is None)
    sections = [_lead, _retrieval, _certified, _scores, _probability, _of_strangers, _labels]
    if gallery.elsewhere:  # what is not told needs vectors
        sections = [_lead, _certified, _scores, _probability]
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


def _certificates(certified: Callable[[float], Certificate]) -> list[Certificate]:
    """Return what can be certified, risk by risk; nothing is kept with the gallery."""
    made = []
    for risk in RISKS:
        with contextlib.suppress(CertificateError):  # too few rows for so small a risk
            made.append(certified(risk))
    return [certificate for certificate in made if certificate.threshold is not None]


def _strangers(gallery: Gallery) -> tuple[Doubts, Doubts] | None:
    """Return the free doubts of strangers, a fifth of the classes being taken out of the gallery, and of others."""
    labels, rows = gallery.labels, gallery.record
    classes = np.unique(labels)
    if len(classes) < 5:
        return None
    generator = np.random.default_rng(0)
    strange = np.isin(labels, generator.permutation(classes)[: max(1, round(STRANGE * len(classes)))])
    drawn = ~strange & (generator.random(len(labels)) < min(STRANGE, ASKED / len(labels)))
    rest = np.flatnonzero(~strange & ~drawn)
    familiar = np.flatnonzero(drawn & np.isin(labels, labels[rest]))
    strangers = np.sort(generator.permutation(np.flatnonzero(strange))[:ASKED])
    searched = {name: np.asarray(values[rest]) for name, values in rows.items()}
    questions = (
        {name: np.asarray(values[chosen]) for name, values in rows.items()} for chosen in (strangers, familiar)
    )
    truths = np.full(len(strangers), -1), labels[familiar]
    first, second = (
        asked_in(record, truth, searched, labels[rest]).free for record, truth in zip(questions, truths, strict=True)
    )
    return first, second


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
            f"Of 100 questions {count_words(100 * best.coverage)} are answered, {count_words(wrong)} of them wrongly: "
            f"at most {100 * best.risk:g} % of the answers given are wrong, with confidence {best.confidence:g}."
        )
    kind = "images in an index of your own" if gallery.elsewhere else f"vectors of {gallery.dim} dimensions"
    facts = f"{len(gallery):,} {kind}, {len(np.unique(gallery.labels)):,} classes."
    rows = "rows were asked, each among the others" if contents.among else "calibration queries were asked"
    count = f"{len(right):,} {rows}."
    return f"<p class=lead>{promise} {alone}</p><p>{facts} {count}</p>"


def _retrieval(contents: Contents) -> str:
    """Measure retrieval; of many rows some ask, and MAP@R, for which all pairs are needed, is not told."""
    mean, labels, retrieval = contents.gallery.record["mean"], contents.gallery.labels, contents.answers.retrieval
    recall = float(contents.answers.right.mean())
    rows = [["as they are", recall, *([float(retrieval["map_at_r"].mean())] if retrieval else [])]]
    if mean.shape[1] <= LARGEST_WHITENED:
        whitened, queries = _whitened(mean), np.sort(np.random.default_rng(0).permutation(len(mean))[:ASKED])
        if retrieval:
            values = retrieval_metrics(
                whitened[queries], labels[queries], gallery=whitened, gallery_labels=labels, self_index=queries, ks=(1,)
            )
            rows.append(["whitened", values["recall_at_1"], values["map_at_r"]])
        else:
            nearest = search(whitened[queries], whitened, self_index=queries, normalize=True).rows[:, 0]
            answerable = np.bincount(labels)[labels[queries]] > 1
            rows.append(["whitened", float((labels[nearest] == labels[queries])[answerable].mean())])
    return f"<h2>Retrieval</h2>{_table(['vectors', 'recall@1', 'MAP@R'][: len(rows[0])], rows)}"


def _whitened(mean: np.ndarray) -> np.ndarray:
    """Return unit rows (N, M) with equal variance in all directions, but for a tenth of the mean; many in float16."""
    some = np.asarray(mean[np.sort(np.random.default_rng(0).permutation(len(mean))[:ASKED])])
    centre = some.mean(axis=0)
    values, vectors = np.linalg.eigh((some - centre).T @ (some - centre) / len(some))
    turn = (vectors / np.sqrt(np.maximum(values, 0) + 0.1 * values.mean())).astype(np.float32)
    whitened = np.empty(mean.shape, dtype=np.float32 if len(mean) <= ASKED else np.float16)
    for start in range(0, len(mean), ASKED):
        block = (mean[start : start + ASKED] - centre) @ turn
        length = np.linalg.norm(block, axis=1, keepdims=True)
        whitened[start : start + ASKED] = block / np.where(length > 0, length, 1)
    return whitened


def _certified(contents: Contents) -> str:
    rows = [
        [f"{100 * made.risk:g} %", f"{100 * made.coverage:.1f} %", f"{100 * made.errors / max(made.answered, 1):.1f} %"]
        for made in contents.certificates
    ]
    answers = contents.answers
    doubt = answers.free["disagreement"] if contents.stated is None else 1 - contents.stated
    accuracy = accuracy_by_coverage(doubt, answers.right.astype(np.float64))
    coverage = np.arange(1, len(accuracy) + 1) / len(accuracy)
    drawn = np.unique(np.linspace(0, len(accuracy) - 1, 200).astype(int))
    points = [(made.coverage, made.errors / max(made.answered, 1)) for made in contents.certificates]
    curve = _drawing(
        list(zip(coverage[drawn], 1 - accuracy[drawn], strict=True)), points, "share answered", "share wrong"
    )
    table = _table(["promised: wrong at most", "answered", "wrong among them, measured"], rows) if rows else ""
    return f"<h2>Certificates</h2>{table}{curve}<p>The curve answers the surest first; dots are certified.</p>"


def _stated(answers: Answers) -> np.ndarray | None:
    """Return P(right) of each answer by a map that saw other classes; None where that cannot be fitted."""
    with contextlib.suppress(ValueError):
        return np.asarray(cross_fitted(answers.free, answers.right, answers.label))
    return None


def _scores(contents: Contents) -> str:
    answers = contents.answers
    if not answers.mixed:
        return ""
    values = {name: auroc(doubt[answers.right], doubt[~answers.right]) for name, doubt in answers.free.items()}
    rows = sorted(values.items(), key=lambda item: -item[1])
    return f"<h2>Scores that cost nothing</h2>{_table(['doubt', 'tells wrong answers (AUROC)'], rows)}"


def _probability(contents: Contents) -> str:
    stated, right = contents.stated, contents.answers.right
    if stated is None:
        return ""
    bins = reliability(stated, right)
    points = list(zip(bins.confidence, bins.accuracy, strict=True))
    ece = p_right_metrics(stated, right)["ece"]
    picture = _drawing([(0.0, 0.0), (1.0, 1.0)], points, "stated P(right)", "share right")
    return f"<h2>P(right)</h2>{picture}<p>Calibration error {ece:.3f}; the map was fitted to other classes.</p>"


def _of_strangers(contents: Contents) -> str:
    if contents.strangers is None:
        return ""
    strange, familiar = contents.strangers
    values = {name: auroc(doubt, strange[name]) for name, doubt in familiar.items()}
    rows = sorted(values.items(), key=lambda item: -item[1])
    return (
        "<h2>Strangers</h2><p>A fifth of the classes was taken out of the gallery; their rows are strangers.</p>"
        + _table(["doubt", "tells strangers from others (AUROC)"], rows)
    )


def _labels(contents: Contents) -> str:
    gallery = contents.gallery
    suspected = suspect_labels(gallery.record["mean"], gallery.class_names)
    shown = [row for row in suspected.order[:SUSPECTS].tolist() if suspected.suspicion[row] > 0]
    rows = [
        [gallery.paths[row], gallery.class_names[row], suspected.proposed[row], float(suspected.suspicion[row])]
        for row in shown
    ]
    pairs = contradictory_copies(gallery.record["mean"], gallery.class_names)
    twice = [[*(f"{gallery.paths[row]} ({gallery.class_names[row]})" for row in pair)] for pair in pairs[:SUSPECTS]]
    text = f"<p>{suspected.count} rows are nearer to another class than to their own.</p>"
    text += _table(["row", "label", "nearer to", "by (cosine)"], rows) if rows else ""
    if twice:
        text += f"<p>{len(pairs)} pairs are one picture under two labels.</p>{_table(['row', 'copy'], twice)}"
    return f"<h2>Labels to look at</h2>{text}"


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
