"""Curves of the evaluation, one line per method: sparsification, detection of strangers, distortions, spectra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from probmetric.io import present
from probmetric.metrics import structure
from probmetric.metrics.selective import accuracy_by_coverage
from probmetric.reporting.answers import Promise, certificate_of
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import _data, _lines, _style, register
from probmetric.reporting.words import group_title
from probmetric.runs.folder import RunFolder
from probmetric.trust.deployed import certified_doubt

DISTORTION = "distortion"
SEVERITY = {"wrong": "errors", "unstated": "excess errors", "rank": "rank"}
TRAINING_SPECTRUM = "train/singular_values"
_SMALLEST = 1e-5


@register("sparsification")
def sparsification(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset, one line per method, averaged over seeds."""
    words = _style.Words(
        "Sparsification curves",
        "Accuracy of the test images that are left when the images with the highest uncertainty are removed first; "
        "mean over seeds. A rising line means that the uncertainty finds the errors; a flat line means that it does "
        "not. The area below the line is AUSC.",
        "no run of this experiment has a sparsification curve.",
        "Line plot of accuracy against the share of removed images: ",
    )
    axes = {"xlim": (0, 1), "xlabel": "share of images removed", "ylabel": "accuracy of the rest"}

    def say(title: str, lines: Mapping[str, _data.Curve]) -> str:
        rise = {variant: y[int(0.5 * (len(y) - 1))] - y[0] for variant, (_, y) in lines.items()}
        label, most = _lines.largest(context, rise)
        return f"on {title}, removing half of the images changes accuracy most for {label} ({most:+.3f})"

    curves = _data.mean_curves(context, "sparsification", "removed", "accuracy")
    return _lines.drawing(context, words, curves, axes, say)


@register("risk_coverage")
def risk_coverage(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset, one line per method, averaged over seeds, with a dot where a certificate stops."""
    curves = _data.collect(context, lambda runs: _data.mean_curve(map(_risks, runs), "answered", "wrong"))
    kept = _data.collect(context, _kept)
    promises = {
        title: {variant: held for variant, held in kept.get(title, {}).items() if variant in lines}
        for title, lines in curves.items()
    }
    words = _style.Words(
        "Wrong answers against the share of questions answered",
        "Test images are questions; the surest are answered first. How sure an answer is, the score says by which the "
        "method's certificate decides (without one, the disagreement of the nearest images). Lines: mean over seeds. "
        "Dot: how many questions the certificates answer that promise the share of wrong answers written in the panel "
        "(the promise of most seeds). A good line starts low and rises late.",
        "no run of this experiment has a match record.",
        f"Risk-coverage curves. Certificates: {'' if any(promises.values()) else 'none'}",
    )
    dots = {
        title: {
            variant: (stop := held.answered / 100, float(np.interp(stop, *curves[title][variant])), f"≤ {_risk(held)}")
            for variant, held in each.items()
        }
        for title, each in promises.items()
    }

    def say(title: str, lines: Mapping[str, _data.Curve]) -> str:
        return "; ".join(
            f"{title}, {context.label(variant)}: {held.answered:.0f} % answered, at most {_risk(held)}"
            for variant, held in promises[title].items()
        )

    axes = {
        "xlim": (0, 1),
        "ylim": (0, None),
        "xlabel": "share of questions answered",
        "ylabel": "share of wrong answers",
    }
    return _lines.drawing(context, words, curves, axes, say, dots=dots)


def _risks(run: RunFolder) -> dict[str, np.ndarray] | None:
    """Return the share of wrong answers among the 1, 2, ..., Q surest of a run."""
    record = run.matches()[0].get("test") if present(run.matches_file) else None
    if record is None or not record["asked"].any():
        return None
    counted, certificate = record["asked"].astype(bool), certificate_of(run)
    doubts = {name.removeprefix("doubt."): values[counted] for name, values in record.items()}
    doubt = certified_doubt(certificate, doubts) if certificate else doubts["disagreement"]
    wrong = 1.0 - accuracy_by_coverage(doubt, record["right"][counted].astype(np.float64))
    return {"answered": np.arange(1, len(wrong) + 1) / len(wrong), "wrong": wrong}


def _kept(runs: Sequence[RunFolder]) -> Promise | None:
    """Return the promise of the runs' certificates, or None if they let no question be answered."""
    promise = Promise.of(runs)
    return promise if promise and promise.answered else None


def _risk(promise: Promise) -> str:
    return f"{100 * promise.risk:g} % wrong"


@register("roc")
def roc(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset and out-of-distribution set, one line per method, averaged over seeds."""
    words = _style.Words(
        "Out-of-distribution detection",
        "ROC curve of the uncertainty: can it tell out-of-distribution images (positive class, which should have the "
        "higher uncertainty) from the test images (negative class)? Mean over seeds. The dotted diagonal is chance. A "
        "line below it means that out-of-distribution images get the lower uncertainty.",
        "no run of this experiment was evaluated on out-of-distribution images.",
        "ROC curves. ",
    )
    panels: dict[str, dict[str, _data.Curve]] = {}
    for name in sorted({name for run in context.runs for name in run.curves if name.startswith("roc/")}):
        for title, lines in _data.mean_curves(context, name, "fpr", "tpr", points=201).items():
            from_zero = {variant: (np.append(0.0, x), np.append(0.0, y)) for variant, (x, y) in lines.items()}
            panels[f"{title}\nvs {name.removeprefix('roc/')}"] = from_zero

    def say(title: str, lines: Mapping[str, _data.Curve]) -> str:
        label, area = _lines.largest(context, {name: float(np.trapezoid(y, x)) for name, (x, y) in lines.items()})
        return f"{title}: {label} has the largest area ({area:.2f})"

    axes = _lines.SQUARE | {"xlabel": "false positive rate", "ylabel": "true positive rate"}
    return _lines.drawing(context, words, panels, axes, say, panel_height=2.7)


@register("severity")
def severity(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset, distortion and question; for many methods all distortions together, if known."""
    words = _style.Words(
        "Answers by severity of each distortion",
        "Test images in bins by the strength of a distortion, equally many images in each. Errors: the share of wrong "
        "answers. Excess errors: that share minus the stated 1 - P(right); above 0 the model is too sure. Rank: the "
        "mean rank of the method's own uncertainty, from 0 (surest) to 1 (least sure). The rank rises if the method "
        "notices the distortion. Mean over seeds.",
        "no dataset of this experiment says how strongly its images were distorted.",
        "Errors and uncertainty against the strength of distortions. ",
    )
    names = (name for run in context.runs for name in run.curves if name.startswith("severity/"))
    distortions = [name.removeprefix("severity/") for name in dict.fromkeys(names)]
    # (distortion, question) -> title of the dataset -> method -> curve
    curves = {
        (name, kind): _data.collect(context, partial(_severity_curve, name, kind))
        for name in distortions
        for kind in SEVERITY
    }
    drawn = {variant for datasets in curves.values() for lines in datasets.values() for variant in lines}
    together = {title for (name, _), datasets in curves.items() if name == DISTORTION for title in datasets}
    together = together if len(drawn) > _lines.FEW else set()
    panels = {
        f"{title}, {name}: {question}": lines
        for kind, question in SEVERITY.items()
        for name in distortions
        for title, lines in curves[name, kind].items()
        if name == DISTORTION or title not in together
    }

    def say(title: str, lines: Mapping[str, _data.Curve]) -> str:
        where, _, question = title.rpartition(": ")
        if question != SEVERITY["rank"]:
            return ""
        label, rise = _lines.largest(context, {variant: float(y[-1] - y[0]) for variant, (_, y) in lines.items()})
        return f"{where}: the uncertainty of {label} rises most ({rise:+.2f} of all ranks)"

    return _lines.drawing(context, words, panels, {"xlabel": "strength", "ylabel": "share"}, say, columns=2)


def _severity_curve(name: str, kind: str, runs: Sequence[RunFolder]) -> _data.Curve | None:
    return _data.mean_curve([_with_excess(run.curves.get(f"severity/{name}")) for run in runs], "strength", kind, 33)


def _with_excess(curve: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Add how much more often an answer was wrong than P(right) stated."""
    if not curve or "stated" not in curve:
        return curve
    return {**curve, "unstated": (np.array(curve["wrong"]) - np.array(curve["stated"])).tolist()}


@register("singular_values")
def singular_values(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset, one line per method, averaged over seeds (paper 001, figure 4).

    The values are those of the training images, as in the paper, if the evaluation of every run measured them
    (`evaluation.training_images`); else those of the test images.
    """
    trained = bool(context.runs) and all(TRAINING_SPECTRUM in run.curves for run in context.runs)
    words = _style.Words(
        "Singular values of the embeddings",
        f"Singular values of the (uncentred) matrix of embeddings of the {'training' if trained else 'test'} images in "
        f"descending order, divided by their sum; mean over seeds. Values below {_SMALLEST:g} are drawn at "
        f"{_SMALLEST:g}. A flat line means that the embeddings use all directions of the space alike, a steep line "
        "that they use few.",
        "no finished run has test embeddings.",
        "Lines of sorted singular values. ",
    )

    def say(title: str, lines: Mapping[str, _data.Curve]) -> str:
        effective = {variant: _effective_number(share) for variant, (_, share) in lines.items()}
        label, count = _lines.largest(context, effective)
        return f"{title}: {label} is flattest, {count:.0f} effective values"

    spectrum = training_spectrum if trained else test_spectrum
    curves = _data.collect(context, lambda runs: mean_spectrum(map(spectrum, runs)))
    axes = {"xscale": "log", "yscale": "log", "xlabel": "rank", "ylabel": "share of the sum", "xlim": (1, None)}
    return _lines.drawing(context, words, curves, axes, say, panel_height=2.5)


def training_spectrum(run: RunFolder) -> np.ndarray:
    """Return the singular values (K,) of the training embeddings, from the files of the evaluation."""
    return np.array(run.curves[TRAINING_SPECTRUM]["value"])


def test_spectrum(run: RunFolder) -> np.ndarray:
    """Return the singular values (K,) of the test embeddings; none without such a file."""
    rows = run.tensors("test", "mean").get("mean", np.empty((0, 0), dtype=np.float32))
    return structure.singular_values(rows) if len(rows) else np.empty(0)


def mean_spectrum(spectra: Iterable[np.ndarray]) -> _data.Curve | None:
    """Return rank (K,) and mean share of the sum (K,); None without a spectrum that is not empty."""
    spectra = [values for values in spectra if len(values)]
    if not spectra:
        return None
    shared = min(map(len, spectra))
    mean = np.mean([values[:shared] / values.sum() for values in spectra], axis=0)
    return np.arange(1, shared + 1), np.maximum(mean, _SMALLEST)


def _effective_number(values: np.ndarray) -> float:
    """Return the exponential of the entropy: the number of equal values that would spread as much."""
    share = values / values.sum()
    return float(np.exp(-np.sum(share * np.log(share))))


COLUMNS = {"train_loss": "change of the loss", "val_metric": "validation metric"}
_WORDS = _style.Words(
    "Learning curves",
    "Training loss: its change since the first epoch, divided by the largest change, so -1 is its lowest point (losses "
    "of different methods have no common scale, and some are negative). The validation metric selects the weights. "
    "Line: mean over seeds; band: from the lowest seed to the highest.",
    "no run of this experiment has a training history.",
)
_Band = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@register("learning_curves")
def learning_curves(context: ReportContext) -> _style.Drawing:
    """Draw one row per dataset: change of the training loss since the first epoch, and the validation metric."""
    bands = {column: _data.collect(context, lambda runs, column=column: _band(runs, column)) for column in COLUMNS}  # type: ignore[misc]
    panels = {
        f"{title}: {name}": bands[column][title]
        for title in map(group_title, context.data)
        for column, name in COLUMNS.items()
        if title in bands[column]
    }
    if not panels:
        return _WORDS.nothing()
    figure = _lines.line_panels(context, panels, _epochs, columns=2, panel_height=1.95)
    return _WORDS.drawing(figure, _alt(context, bands["val_metric"]))


def _epochs(axis: Axes) -> None:
    axis.set(xlabel="epoch")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))


def _band(runs: Sequence[RunFolder], column: str) -> _Band | None:
    """Return (epochs (E,), mean (E,), lowest (E,), highest (E,)) over the epochs all seeds have."""
    curves = [curve for run in runs if (curve := _curve(run, column))]
    shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not shared:
        return None
    table = np.array([[curve[epoch] for epoch in shared] for curve in curves])
    return np.array(shared), table.mean(0), table.min(0), table.max(0)


def _curve(run: RunFolder, column: str) -> dict[float, float]:
    """Return epoch -> value; for a loss, its change since the first epoch as a share of the largest change."""
    curve = {
        epoch: value
        for row in run.history
        if (epoch := row.get("epoch")) is not None and (value := row[column]) is not None
    }
    if column != "train_loss" or not curve:
        return curve
    first = next(iter(curve.values()))
    largest = max(abs(value - first) for value in curve.values())
    return {epoch: (value - first) / (largest or 1.0) for epoch, value in curve.items()}


def _alt(context: ReportContext, validation: dict[str, dict[str, _Band]]) -> str:
    parts = []
    for title, bands in validation.items():
        label, highest = _lines.largest(context, {variant: band[1].max() for variant, band in bands.items()})
        parts.append(f"on {title}, {label} reaches the highest ({highest:.3f})")
    return f"Training loss and validation metric by epoch. Validation metric: {'; '.join(parts) or 'not recorded'}."


@register("reliability")
def class_probabilities(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset, one line per method, averaged over seeds."""
    words = _style.Words(
        "Reliability",
        "Accuracy of predictions against their confidence, in bins, mean over seeds. On the dotted diagonal confidence "
        "equals accuracy. Below it the method is overconfident, above it underconfident.",
        "no run of this experiment has class probabilities on a closed set.",
    )
    return _diagram(context, "reliability", words)


@register("retrieval_reliability")
def votes(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset, one line per method that draws samples, averaged over seeds (paper 003, figure 6)."""
    words = _style.Words(
        "Reliability of retrieval by vote",
        "Each sample of an image's embedding votes for the label of its nearest neighbour among the samples of the "
        "other images. The label with most votes is the prediction, its share of the votes the confidence. Accuracy "
        "against confidence in ten bins, mean over seeds; bins with few images scatter. On the dotted diagonal "
        "confidence equals accuracy. Below it the method is overconfident.",
        "no run of this experiment draws samples of its embeddings.",
    )
    return _diagram(context, "retrieval_reliability", words)


@register("p_right")
def stated_probabilities(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset, one line per method, averaged over seeds."""
    words = _style.Words(
        "Reliability of P(right)",
        "Share of right answers against P(right), the stated probability that an answer is right; bins with equally "
        "many answers, mean over seeds. P(right) comes from the scores that any search returns, by a map fitted on "
        "other classes of the same gallery. On the dotted diagonal both agree; below it, P(right) promises too much.",
        "no run of this experiment has both right and wrong answers to labelled queries.",
    )
    return _diagram(context, "p_right", words)


def _diagram(context: ReportContext, curve: str, words: _style.Words) -> _style.Drawing:
    """Draw accuracy against confidence, from the `curve` of every run."""

    def say(title: str, lines: Mapping[str, _data.Curve]) -> str:
        parts = []
        for variant, (confidence, accuracy) in lines.items():
            gap = float(np.mean(accuracy - confidence))
            word = "above" if gap > 0 else "below"
            parts.append(f"{title}, {context.label(variant)}: on average {abs(gap):.2f} {word}")
        return "; ".join(parts)

    words = replace(words, alt="Accuracy against confidence, relative to the diagonal. ")
    curves = _data.mean_curves(context, curve, "confidence", "accuracy", points=41)
    axes = _lines.SQUARE | {"xlabel": "confidence", "ylabel": "accuracy"}
    return _lines.drawing(context, words, curves, axes, say, panel_height=2.6)
