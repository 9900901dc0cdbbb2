"""Panels that compare the distribution of one number over two groups of images, blue and orange."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE = "#0072B2", "#D55E00"
_MOST_BINS = 40


@dataclass(frozen=True)
class Groups:
    """Values (A,) and (B,) of two groups of images, and a `note` for the corner of their panel."""

    blue: np.ndarray
    orange: np.ndarray
    note: str


def chance_larger(first: np.ndarray, second: np.ndarray) -> float:
    """Probability that one of the values `first` (A,) is larger than one of `second` (B,); NaN if either is empty."""
    if not len(first) or not len(second):
        return math.nan
    from probmetric.metrics.ood import ood_metrics

    return float(ood_metrics(second, first)["auroc"])


def histogram_panels(panels: Mapping[str, Groups], names: tuple[str, str], quantity: str) -> Figure:
    """One panel per title: shares of both groups with their medians; logarithmic where the values spread widely."""
    from matplotlib.patches import Patch

    columns = min(3, len(panels))
    figure, axes = _style.grid(math.ceil(len(panels) / columns), columns, panel_height=1.75, named=names)
    for axis, (title, groups) in zip(_style.trim(axes, len(panels)), panels.items(), strict=True):
        _panel(axis, groups)
        axis.set_title(title, fontsize=7.5)
        axis.set(xlabel=quantity, yticks=[])
    handles = [Patch(facecolor=colour, alpha=0.5, edgecolor=colour) for colour in (BLUE, ORANGE)]
    _style.legend(figure, handles, names)
    return figure


def _panel(axis: Axes, groups: Groups) -> None:
    together = np.concatenate([groups.blue, groups.orange]).astype(np.float64)
    low, high = np.quantile(together, [0.001, 0.999])
    wide = low > 0 and high / low > 50
    bins = int(np.clip(2 * math.sqrt(min(len(groups.blue), len(groups.orange))), 8, _MOST_BINS))
    edges = np.geomspace(low, high, bins + 1) if wide else np.linspace(low, max(high, low + 1e-12), bins + 1)
    for values, colour in ((groups.blue, BLUE), (groups.orange, ORANGE)):
        if len(values):
            counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
            axis.stairs(counts / len(values), edges, fill=True, color=colour, alpha=0.35)
            axis.stairs(counts / len(values), edges, color=colour, linewidth=1)
            axis.axvline(float(np.median(values)), color=colour, linestyle=(0, (4, 2)), linewidth=1)
    axis.grid(visible=False, axis="y")
    axis.text(0.97, 0.94, groups.note, transform=axis.transAxes, ha="right", va="top", fontsize=7.5)
    if wide:
        axis.set_xscale("log")
    else:
        axis.locator_params(axis="x", nbins=4)
        axis.ticklabel_format(axis="x", scilimits=(-3, 5), useMathText=True)
