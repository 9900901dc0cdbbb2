"""Singular values of the embeddings in descending order (paper 001, figure 4).

Of the training images, as in the paper, where the evaluation of every run measured them (`evaluation.training_images`);
else of the test images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probmetric.reporting.figures import _data, _lines, _style, register

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder

TITLE = "Singular values of the embeddings"
_FLOOR = 1e-5
_TRAINING = "train/singular_values"


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset, one line per method, averaged over seeds."""
    trained = bool(context.runs) and all(_TRAINING in run.curves for run in context.runs)
    found = _data.collect(context, _mean_of_training if trained else _mean_of_test)
    if not found:
        return _style.nothing(TITLE, "no finished run has test embeddings.")
    panels = {_data.group_title(data): curves for data, curves in found.items()}
    figure = _lines.line_panels(context, panels, _finish, panel_height=2.5)
    caption = (
        f"Singular values of the (uncentred) matrix of embeddings of the {'training' if trained else 'test'} images in "
        f"descending order, divided by their sum, mean over seeds; those below {_FLOOR:g} are drawn there. A flat line "
        "uses all directions of the space alike; one that falls steeply lives in few of them."
    )
    parts = []
    for data, curves in found.items():
        flattest = max(curves, key=lambda variant: _effective(curves[variant][1]))
        count = _effective(curves[flattest][1])
        parts.append(f"{_data.group_title(data)}: {context.label(flattest)} is flattest, {count:.0f} effective values")
    return _style.Drawing(figure, TITLE, caption, f"Lines of sorted singular values. {'; '.join(parts)}.")


def _mean_of_training(runs: Sequence[RunFolder]) -> _data.Curve | None:
    return _mean([np.array(run.curves[_TRAINING]["value"]) for run in runs])


def _mean_of_test(runs: Sequence[RunFolder]) -> _data.Curve | None:
    return _mean([values for run in runs if len(values := _spectrum(run))])


def _mean(spectra: list[np.ndarray]) -> _data.Curve | None:
    """Rank (K,) and mean share of the sum (K,)."""
    if not spectra:
        return None
    shared = min(map(len, spectra))
    mean = np.mean([values[:shared] / values.sum() for values in spectra], axis=0)
    return np.arange(1, shared + 1), np.maximum(mean, _FLOOR)


def _spectrum(run: RunFolder) -> np.ndarray:
    """Singular values (K,) of the test embeddings; none without such a file."""
    from probmetric.metrics.structure import singular_values

    rows = run.tensors("test", "mean").get("mean", np.empty((0, 0), dtype=np.float32))
    return singular_values(rows) if len(rows) else np.empty(0)


def _effective(values: np.ndarray) -> float:
    """Exponential of the entropy: the number of equal values that would spread as much."""
    share = values / values.sum()
    return float(np.exp(-np.sum(share * np.log(share))))


def _finish(axis: Axes) -> None:
    axis.set(xscale="log", yscale="log", xlabel="rank", ylabel="share of the sum")
    axis.set_xlim(left=1)
