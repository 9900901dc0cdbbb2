"""Three-dimensional embeddings of the test images, coloured by class (paper 002, figure 4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _style, register

if TYPE_CHECKING:
    from mpl_toolkits.mplot3d import Axes3D

    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

TITLE = "Embeddings in three dimensions"
_POINTS = 2000
_COLUMNS = 3


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset and method with three-dimensional embeddings (its first seed)."""
    runs = _data.first_runs(context, "mean", "label")
    runs = {place: run for place, run in runs.items() if run.tensors("test", "mean")["mean"].shape[1] == 3}
    if not runs:
        return _style.nothing(TITLE, "no finished run has three-dimensional embeddings; set `dim: 3`.")
    columns = min(_COLUMNS, len(runs))
    rows = math.ceil(len(runs) / columns)
    figure, axes = _style.grid(rows, columns, panel_height=2.6, subplot_kw={"projection": "3d"})
    parts = []
    for axis, ((data, variant), run) in zip(_style.trim(axes, len(runs)), runs.items(), strict=True):
        points, labels = _points(run)
        _scatter(axis, points, labels)  # type: ignore[arg-type]
        axis.set_title(f"{_data.group_title(data)}\n{context.label(variant)}", fontsize=7.5)
        length = np.linalg.norm(points, axis=1)
        where = f"{_data.group_title(data)}, {context.label(variant)}"
        parts.append(f"{where}: lengths {length.min():.3g} to {length.max():.3g}")
    caption = (
        f"Test embeddings (up to {_POINTS:,}; first seed): direction times concentration, which for methods that take "
        "the norm as concentration is the embedding before normalisation; on the unit sphere for methods without one. "
        "One colour per class, its number beyond the class mean; circles at the median length. Losses on the sphere "
        "tell classes apart by direction alone; what varies along a ray is the norm."
    )
    return _style.Drawing(figure, TITLE, caption, f"Scatter plots in three dimensions. {'; '.join(parts)}.")


def _points(run: RunFolder) -> tuple[np.ndarray, np.ndarray]:
    """Raw embeddings (N, 3) and labels (N,)."""
    found = run.tensors("test", "mean", "label", "concentration")
    keep = np.sort(np.random.default_rng(0).permutation(len(found["label"]))[:_POINTS])
    points = found["mean"][keep].astype(np.float64)
    if "concentration" in found:
        points *= found["concentration"][keep, None]
    return points, found["label"][keep]


def _scatter(axis: Axes3D, points: np.ndarray, labels: np.ndarray) -> None:
    import matplotlib as mpl

    names = np.unique(labels)
    colours = mpl.colormaps["turbo"](np.linspace(0.05, 0.95, len(names)))
    reach = np.quantile(np.abs(points), 0.998) or 1.0
    for name, colour in zip(names, colours, strict=True):
        own = points[labels == name]
        axis.scatter(*own.T, s=6, color=colour, alpha=0.75, linewidths=0, rasterized=True)
        if len(names) <= 20:
            direction = own.mean(axis=0)
            place = 1.12 * direction * np.linalg.norm(own, axis=1).mean() / (np.linalg.norm(direction) or 1.0)
            axis.text(*place, str(name), fontsize=7.5, fontweight="bold", ha="center", va="center")
    _great_circles(axis, float(np.median(np.linalg.norm(points, axis=1))))
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach, reach))
    axis.set_box_aspect((1, 1, 1), zoom=1.5)
    axis.set_axis_off()


def _great_circles(axis: Axes3D, radius: float) -> None:
    """Three circles that show where the sphere of the median norm lies."""
    turn = np.linspace(0, 2 * np.pi, 121)
    circle = radius * np.stack([np.cos(turn), np.sin(turn), np.zeros_like(turn)])
    for shift in range(3):
        axis.plot(*np.roll(circle, shift, axis=0), color="#BBBBBB", linewidth=0.6, zorder=0)
