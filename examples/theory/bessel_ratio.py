"""The ratio of Bessel functions A_M(kappa), its approximation and the concentrations training starts from (paper 002).

Figure 2 and appendices B and C of the paper: the initialiser lambda (M - 1) / (1 - lambda^2) solves for the upper bound
of A_M, and weights drawn with it should have A_M(|w|) = lambda in every dimension.
"""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from probmetric.directional import mean_resultant_length
from probmetric.losses import create_loss
from probmetric.losses._released_vmf import bounds_scaled_ratio
from probmetric.reporting.figures import _style

TITLE = "Mean resultant length and initial concentrations"
DIMS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
RESULTANT = 0.4
_WEIGHTS = 4000
_START_MARKERS = {
    "as_published": ("o", "white", "initial norm, eq. 19"),
    "corrected": ("D", None, "initial norm, exact"),
}


def draw() -> _style.Drawing:
    """A_M with the starting points, and the relative error of its approximation."""
    figure, ((ratio_axis, error_axis),) = _style.grid(1, 2, panel_height=3.1, named=_legend_names())
    colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.92, len(DIMS)))
    kappa = np.geomspace(0.05, 3000, 300)
    for dim, colour in zip(DIMS, colours, strict=True):
        exact, approximate = ratios(kappa, dim)
        ratio_axis.plot(kappa, exact, color=colour)
        ratio_axis.plot(kappa, approximate, color=colour, linestyle=(0, (1.2, 1.2)), linewidth=1.1)
        error_axis.plot(kappa, np.abs(approximate / exact - 1), color=colour, label=f"{dim}")
        _starting_points(ratio_axis, dim, colour)
    ratio_axis.axhline(RESULTANT, color="#888888", linewidth=0.8, zorder=1)
    ratio_axis.set(xscale="log", xlabel="κ", ylabel="A(κ)", ylim=(0, 1.02), title="Mean resultant length")
    error_axis.set(xscale="log", yscale="log", xlabel="κ", ylabel="relative error", ylim=(1e-7, 1))
    error_axis.set_title("Approximation of paper 002")
    error_axis.legend(
        title="M",
        fontsize=6.5,
        title_fontsize=7,
        loc="lower left",
        ncols=3,
        handlelength=1.1,
        columnspacing=0.8,
        labelspacing=0.25,
    )
    _legend(figure)
    return _style.Drawing(figure, TITLE, _caption(), _alt())


def ratios(kappa: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Exact A_M (K,) and the mean of bounds of paper 002 (K,) at `kappa` (K,), in float64."""
    concentration = torch.tensor(kappa, dtype=torch.float64)
    approximate = concentration * bounds_scaled_ratio(concentration.square(), dim)
    return mean_resultant_length(concentration, dim).numpy(), approximate.numpy()


def initial_norm(dim: int, fidelity: str) -> float:
    """Mean norm of the class weights that the vMF loss starts from, for lambda = `RESULTANT`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loss: Any = create_loss("vmf", num_classes=_WEIGHTS, dim=dim, resultant=RESULTANT, fidelity=fidelity)
    return float(loss.weight.detach().norm(dim=1).mean())


def _starting_points(axis: Axes, dim: int, colour: np.ndarray) -> None:
    for fidelity, (marker, face, _) in _START_MARKERS.items():
        kappa = initial_norm(dim, fidelity)
        height = ratios(np.array([kappa]), dim)[0]
        size = 5.5 if face else 3.5
        axis.plot(kappa, height, marker, color=colour, markerfacecolor=face or colour, markersize=size, zorder=4)


def _legend(figure: Figure) -> None:
    grey = "#444444"
    lines = [Line2D([], [], color=grey), Line2D([], [], color=grey, linestyle=(0, (1.2, 1.2)))]
    points = [
        Line2D([], [], color=grey, marker=marker, markerfacecolor=face or grey, linestyle="none", markersize=5)
        for marker, face, _ in _START_MARKERS.values()
    ]
    _style.legend(figure, [*lines, *points], _legend_names())


def _legend_names() -> list[str]:
    return ["exact", "mean of bounds", *(name for _, _, name in _START_MARKERS.values())]


def _caption() -> str:
    return (
        "Left: A(κ) = I_{M/2}(κ) / I_{M/2−1}(κ) for dimensions M = 2 (dark) to 512 (light), exact and by the mean of "
        f"two bounds. Points: mean norm of {_WEIGHTS:,} class weights at the start of training, which should lie on "
        f"the line A = {RESULTANT:g}: with the published initialiser (eq. 19), which inverts an upper bound of A, and "
        "with ours, which inverts A. (In few dimensions both fall short because the mean norm of a Gaussian vector is "
        "below its root mean square.) Where A is flat, at small κ, there is next to no gradient. Right: relative error "
        "of the approximation, largest for few dimensions and small κ. Paper 002, figure 2."
    )


def _alt() -> str:
    parts = []
    for dim in (DIMS[0], 8, DIMS[-1]):
        published, ours = (
            float(ratios(np.array([initial_norm(dim, fidelity)]), dim)[0][0]) for fidelity in _START_MARKERS
        )
        parts.append(f"M = {dim}: {published:.2f} and {ours:.2f}")
    exact, approximate = ratios(np.array([0.05]), DIMS[0])
    return (
        "A(κ) rises from 0 to 1, later in higher dimensions. At the start of training it is, with the published and "
        f"the exact initialiser, {'; '.join(parts)}. At κ = 0.05 and M = {DIMS[0]} the approximation is "
        f"{100 * float(approximate[0] / exact[0] - 1):.0f} % too large."
    )
