"""Approximations of log C_M against its exact value (paper 000, appendix A and figure 8; paper 002, appendix B).

Only differences of log C_M enter a loss, so every curve is shown relative to its value at kappa = 0, and the slope
-d log C_M / d kappa, which is the mean resultant length A_M and lies in [0, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D
from torch import Tensor

from probmetric.directional.normalizer import log_normalizer_of_square
from probmetric.losses._released_vmf import bounds_log_normalizer, quadratic_log_normalizer
from probmetric.reporting.figures import _style

Approximation = Callable[[Tensor, int], Tensor]

TITLE = "Approximations of the vMF normaliser"
DIMS = (128, 512)
FIT = (10.0, 50.0)
_LOOKS: dict[str, tuple[str, Any]] = {
    "exact": ("#333333", "-"),
    "quadratic fit": ("#D55E00", (0, (5, 1.5))),
    "mean of bounds": ("#0072B2", ":"),
}
_FLOOR = 1e-6


def draw() -> _style.Drawing:
    """Decay, slope and, over kappa and dimension, the error."""
    figure, axes = _style.grid(3, 2, panel_height=2.1, named=list(_LOOKS))
    kappa = np.linspace(0, 1000, 801)
    for decay_axis, slope_axis, dim in zip(axes[0], axes[1], DIMS, strict=True):
        for name, (colour, dash) in _LOOKS.items():
            decay, slope = decay_and_slope(name, kappa, dim)
            decay_axis.plot(kappa, decay, color=colour, linestyle=dash)
            slope_axis.plot(kappa, slope, color=colour, linestyle=dash)
        _finish(decay_axis, dim, "log C(κ) − log C(0)", (-1050, 40))
        _finish(slope_axis, dim, "−d log C / dκ", (0, 1.6))
        slope_axis.axhline(1, color="#888888", linewidth=0.8)
        slope_axis.text(990, 1.03, "impossible above", ha="right", va="bottom", fontsize=7, color="#555555")
    concentrations, dims = np.geomspace(0.1, 1e4, 121), np.unique(np.geomspace(2, 2048, 81).round().astype(int))
    for axis, name in zip(axes[2], ("quadratic fit", "mean of bounds"), strict=True):
        mesh = _error_map(axis, concentrations, dims, error(name, concentrations, dims))
        axis.set_title(f"Error of the {name}")
    bar = figure.colorbar(mesh, ax=axes[2], pad=0.015, aspect=14, extend="both")
    bar.set_label("|error| (nats)")
    handles = [Line2D([], [], color=colour, linestyle=dash) for colour, dash in _LOOKS.values()]
    _style.legend(figure, handles, list(_LOOKS))
    return _style.Drawing(figure, TITLE, _caption(), _alt())


def decay_and_slope(name: str, kappa: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Log C_M(kappa) - log C_M(0) and its negated slope, both (K,), at `kappa` (K,), in float64."""
    concentration = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
    value = _approximation(name)(concentration.square(), dim)
    (slope,) = torch.autograd.grad(value.sum(), concentration)
    start = _approximation(name)(torch.zeros(1, dtype=torch.float64), dim)
    return (value - start).detach().numpy(), -slope.numpy()


def error(name: str, kappa: np.ndarray, dims: np.ndarray) -> np.ndarray:
    """|approximation - exact| of log C_M(kappa) - log C_M(0), (D, K)."""
    rows = []
    for dim in dims.tolist():
        exact, approximate = (decay_and_slope(kind, kappa, dim)[0] for kind in ("exact", name))
        rows.append(np.abs(approximate - exact))
    return np.stack(rows)


def _approximation(name: str) -> Approximation:
    known: dict[str, Approximation] = {
        "exact": log_normalizer_of_square,
        "quadratic fit": quadratic_log_normalizer,
        "mean of bounds": bounds_log_normalizer,
    }
    return known[name]


def _finish(axis: Axes, dim: int, quantity: str, limits: tuple[float, float]) -> None:
    axis.axvspan(*FIT, color="#D55E00", alpha=0.16, linewidth=0)
    axis.set(title=f"M = {dim}", xlabel="κ", ylabel=quantity, xlim=(0, 1000), ylim=limits)


def _error_map(axis: Axes, kappa: np.ndarray, dims: np.ndarray, values: np.ndarray) -> Any:
    mesh = axis.pcolormesh(
        kappa, dims, np.maximum(values, _FLOOR), norm=LogNorm(_FLOOR, 1e3), cmap="viridis", rasterized=True
    )
    axis.contour(kappa, dims, values, levels=[0.1], colors="white", linewidths=1)
    axis.set(xscale="log", yscale="log", xlabel="κ", ylabel="dimension M")
    axis.set_yscale("log", base=2)
    for side in FIT:
        axis.axvline(side, color="white", linestyle=":", linewidth=0.9)
    axis.grid(visible=False)
    return mesh


def _caption() -> str:
    return (
        "The exact log C(κ) of this library, the quadratics that paper 000 fits for M = 128 and M = 512 on κ = 10..50 "
        "(shaded; dotted in the maps) and the mean of two bounds of paper 002, all relative to κ = 0, where constants "
        "cancel. Top: the quadratics leave the true curve soon after the range they were fitted on. Middle: their "
        "slope stands for the mean resultant length A(κ), which cannot exceed 1. Bottom: absolute error over κ and "
        "the dimension; the white line is 0.1 nats. The released code uses the fit for M = 512 in every dimension but "
        "128 (the thin line in the left map). Paper 000, figure 8."
    )


def _alt() -> str:
    parts = []
    for dim in DIMS:
        kappa = np.array([50.0, 200.0, 1000.0])
        errors = error("quadratic fit", kappa, np.array([dim]))[0]
        bounds = error("mean of bounds", kappa, np.array([dim]))[0]
        shown = ", ".join(f"{a:.2g} and {b:.2g} at κ = {k:g}" for k, a, b in zip(kappa, errors, bounds, strict=True))
        parts.append(f"M = {dim}: {shown}")
    return f"Errors of the quadratic fit and of the mean of bounds in nats. {'; '.join(parts)}."
