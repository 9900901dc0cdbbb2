"""Histograms that compare one number over two groups of images, blue and orange."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from probmetric.metrics.ood import ood_metrics
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.figures import _data, _style, register
from probmetric.reporting.words import group_title, listed
from probmetric.runs.folder import RunFolder

_MOST_BINS = 40


@register("uncertainty_histogram")
def uncertainty(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset and method with out-of-distribution images (first seed; paper 003, figure 7)."""
    words = _style.Words(
        "Uncertainty of test and out-of-distribution images",
        "Share of images by their uncertainty, for test images and images of other datasets; first seed. Dashed lines: "
        "medians. In the corner: AUROC, the chance that the image of another dataset is less certain. Each method has "
        "its own scale.",
        "no run of this experiment was evaluated on out-of-distribution images.",
        "Histograms. AUROC: ",
    )
    panels = {}
    for (data, variant), run in _data.first_runs(context, "uncertainty").items():
        strange = run.tensors("ood", "uncertainty").get("uncertainty")
        if strange is not None and len(strange):
            test = run.tensors("test", "uncertainty")["uncertainty"]
            title = f"{group_title(data)}\n{context.label(variant)}"
            panels[title] = Groups(test, strange, chance_larger(strange, test))
    return _drawing(words, panels, ("test images", "out-of-distribution images"), "uncertainty")


@register("norm_histogram")
def norms(context: ReportContext) -> _style.Drawing:
    """Draw one panel per dataset and method with concentrations, its first seed (paper 000, figure 9).

    The experiment's first method on a prepared dataset judges which of its images are right, as a baseline does in the
    paper. If a dataset has a single method, that method judges.
    """
    judges: dict[str, RunFolder] = {}
    for run in context.runs:
        if run.holds("test", "mean", "label", "index"):
            judges.setdefault(run.key.data, run)
    shown = _data.first_runs(context, "concentration", "index")
    verdicts = {data: judgement(context, judges[data]) for data in {run.key.data for run in shown.values()}}
    panels, judged_by = {}, {}
    for (data, variant), run in shown.items():
        test = run.tensors("test", "concentration", "index")
        verdict = verdicts[run.key.data][test["index"]]
        right, wrong = (test["concentration"][verdict == value] for value in (1, 0))
        panels[f"{group_title(data)}\n{context.label(variant)}"] = Groups(right, wrong, chance_larger(right, wrong))
        judge = judges[run.key.data].key
        judged_by[judge.data] = f"{context.label(judge.variant)} on {group_title(judge.data)}"
    words = _style.Words(
        "Norms of right and wrong images",
        "Share of test images by concentration (mostly the norm of the embedding); first seed. An image is right if "
        "its nearest neighbour is of its class. Dashed lines: medians. In the corner: the chance that a right image "
        "has a larger concentration than a wrong one (0.5: the concentration tells nothing). All panels compare the "
        "same images: right and wrong are decided by the experiment's first method, "
        f"{listed(list(judged_by.values()))}.",
        "no finished run has concentrations.",
        "Histograms. Chance that a right image has the larger concentration: ",
    )
    return _drawing(words, panels, ("nearest neighbour right", "nearest neighbour wrong"), "concentration")


@dataclass(frozen=True)
class Groups:
    """Values (A,) and (B,) of two groups of images, and the chance written in the corner of their panel."""

    blue: np.ndarray
    orange: np.ndarray
    chance: float


def chance_larger(first: np.ndarray, second: np.ndarray) -> float:
    """Return the chance that a value of `first` (A,) exceeds a value of `second` (B,); NaN if either is empty."""
    if not len(first) or not len(second):
        return math.nan
    return float(ood_metrics(second, first)["auroc"])


def judgement(context: ReportContext, run: RunFolder) -> np.ndarray:
    """Return by manifest row: 1 if the image's nearest neighbour has its class, 0 if not, -1 if it is no query."""
    test = run.tensors("test", "mean", "label", "index")
    label, protocol = test["label"], _data.sides(context, run.key.data, test)
    table = np.full(int(test["index"].max(initial=-1)) + 1, -1)
    answers = _data.nearest(test["mean"], protocol, protocol.queries, 1)[0]
    if answers.size:
        table[test["index"][protocol.queries]] = label[answers[:, 0]] == label[protocol.queries]
    return table


def _drawing(
    words: _style.Words, panels: Mapping[str, Groups], names: tuple[str, str], quantity: str
) -> _style.Drawing:
    """Draw one panel per title: shares of both groups and their medians; logarithmic if the values spread widely."""
    if not panels:
        return words.nothing()
    figure, axes = _style.panels(len(panels), 3, panel_height=1.75, named=names)
    for axis, (title, groups) in zip(axes, panels.items(), strict=True):
        _panel(axis, groups)
        axis.set_title(title, fontsize=7.5)
        axis.set(xlabel=quantity, yticks=[])
    colours = (_style.BLUE, _style.ORANGE)
    _style.legend(figure, [Patch(facecolor=colour, alpha=0.5, edgecolor=colour) for colour in colours], names)
    chances = (f"{title.replace(chr(10), ', ')}: {groups.chance:.2f}" for title, groups in panels.items())
    return words.drawing(figure, f"{words.alt}{'; '.join(chances)}.")


def _panel(axis: Axes, groups: Groups) -> None:
    together = np.concatenate([groups.blue, groups.orange]).astype(np.float64)
    low, high = np.quantile(together, [0.001, 0.999])
    wide = low > 0 and high / low > 50
    bins = int(np.clip(2 * math.sqrt(min(len(groups.blue), len(groups.orange))), 8, _MOST_BINS))
    edges = np.geomspace(low, high, bins + 1) if wide else np.linspace(low, max(high, low + 1e-12), bins + 1)
    for values, colour in ((groups.blue, _style.BLUE), (groups.orange, _style.ORANGE)):
        if len(values):
            counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
            axis.stairs(counts / len(values), edges, fill=True, color=colour, alpha=0.35)
            axis.stairs(counts / len(values), edges, color=colour, linewidth=1)
            axis.axvline(float(np.median(values)), color=colour, linestyle=(0, (4, 2)), linewidth=1)
    axis.grid(visible=False, axis="y")
    axis.text(0.97, 0.94, f"{groups.chance:.2f}", transform=axis.transAxes, ha="right", va="top", fontsize=7.5)
    if wide:
        axis.set_xscale("log")
    else:
        axis.locator_params(axis="x", nbins=4)
        axis.ticklabel_format(axis="x", scilimits=(-3, 5), useMathText=True)
