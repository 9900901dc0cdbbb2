"""Singular values of the test embeddings in descending order (paper 001, figure 4).

The paper takes training embeddings; of those we keep none, and the zero-shot test classes are the harder question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _lines, _style, register

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting._runs import Run
    from probmetric.reporting.experiment import ReportContext

TITLE = "Singular values of the embeddings"
_FLOOR = 1e-5


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset, one line per method, averaged over seeds."""
    found = _data.collect(context, _mean_spectrum)
    if not found:
        return _style.nothing(TITLE, "no finished run has test embeddings.")
    figure = _lines.line_panels(
        context, {_data.group_title(data): curves for data, curves in found.items()}, _finish, panel_height=2.5
    )
    caption = (
        "Singular values of the (uncentred) matrix of test embeddings in descending order, divided by their sum, mean "
        f"over seeds; those below {_FLOOR:g} are drawn there. A flat line uses all directions of the space alike; one "
        "that falls steeply lives in few of them."
    )
    parts = []
    for data, curves in found.items():
        flattest = max(curves, key=lambda variant: _effective(curves[variant][1]))
        count = _effective(curves[flattest][1])
        parts.append(f"{_data.group_title(data)}: {context.label(flattest)} is flattest, {count:.0f} effective values")
    return _style.Drawing(figure, TITLE, caption, f"Lines of sorted singular values. {'; '.join(parts)}.")


def _mean_spectrum(runs: Sequence[Run]) -> _data.Curve | None:
    from probmetric.evaluation.structure import singular_values

    spectra = []
    for run in runs:
        rows = _data.tensors(run, "test", "mean").get("mean")
        if rows is not None and len(rows):
            values = singular_values(rows)
            spectra.append(values / values.sum())
    if not spectra:
        return None
    shared = min(map(len, spectra))
    mean = np.mean([values[:shared] for values in spectra], axis=0)
    return np.arange(1, shared + 1), np.maximum(mean, _FLOOR)


def _effective(values: np.ndarray) -> float:
    """Exponential of the entropy: the number of equal values that would spread as much."""
    share = values / values.sum()
    return float(np.exp(-np.sum(share * np.log(share))))


def _finish(axis: Axes) -> None:
    axis.set(xscale="log", yscale="log", xlabel="rank", ylabel="share of the sum")
    axis.set_xlim(left=1)
