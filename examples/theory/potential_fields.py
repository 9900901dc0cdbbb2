"""Attraction and repulsion of the potential-field loss, alone and superposed (paper 004, section 3.2 and figure 2).

The loss acts between unit vectors; points that lie close together see the plane drawn here. Potentials come from the
losses themselves, in units in which two points of one class in contact have the energy -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from probmetric.losses import create_loss
from probmetric.reporting.figures import _style

TITLE = "Potential fields"
DELTA = 0.2
ALPHA = 3.0
DECAYS = (1.0, 2.0, 4.0)
_COLOURS = ("#0072B2", "#D55E00")
# A class with two modes, the other between them with one point astray (say, a wrong label).
_POINTS = (
    np.array([[-0.72, 0.34], [-0.55, 0.47], [-0.6, 0.22], [0.52, -0.42], [0.66, -0.3], [0.7, -0.5]]),
    np.array([[0.42, 0.4], [0.58, 0.52], [0.62, 0.33], [0.47, 0.58], [-0.62, -0.45]]),
)
_EDGE = 1.0


def draw() -> _style.Drawing:
    """Profiles of one point above, the fields of two classes below."""
    figure, axes = _style.grid(2, 2, panel_height=2.9, gridspec_kw={"height_ratios": [0.8, 1.0]})
    _profiles(axes[0][0], axes[0][1])
    for own, axis in enumerate(axes[1]):
        _field(axis, own)
    caption = (
        "Top: potential of one point over the distance to it, and the strength of its force, for several decays α at "
        f"δ = {DELTA:g} (dotted line), in units of the energy of contact. Attraction is flat within δ, repulsion "
        "beyond it; the force of attraction fades with distance, that of the contrastive potential (grey) grows. "
        f"Bottom: the potential of either class (α = {ALPHA:g}; dark is low, bright is high) and the direction of the "
        "force on its members (arrows). Class 1 (blue circles) has two modes, and each keeps its own valley; points of "
        "the other class are hills of radius δ. One point of class 2 (orange squares) lies astray, as one with a wrong "
        "label would: beyond its own surroundings it hardly bends the field. Paper 004, figure 2."
    )
    alt = (
        "Potential and force of attraction and repulsion against distance, and contour maps of the potential fields of "
        "two classes with arrows towards the nearest points of the own class."
    )
    return _style.Drawing(figure, TITLE, caption, alt)


def potentials(squared: np.ndarray, alpha: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`attraction` and `repulsion` -> value and derivative by the squared distance, both shaped as `squared`."""
    loss: Any = create_loss(
        "potential_field", num_classes=2, dim=2, alpha=alpha, delta_attraction=DELTA, delta_repulsion=DELTA
    )
    distances = torch.tensor(squared, dtype=torch.float64, requires_grad=True)
    values = {"attraction": loss.attraction(distances), "repulsion": loss.repulsion(distances)}
    slopes = {name: torch.autograd.grad(value.sum(), distances)[0] for name, value in values.items()}
    return {name: (value.detach().numpy(), slopes[name].numpy()) for name, value in values.items()}


def class_field(own: int, places: np.ndarray, alpha: float = ALPHA) -> tuple[np.ndarray, np.ndarray]:
    """Psi_j of class `own` (eq. 3) at `places` (..., 2): values (...) and force -grad Psi_j (..., 2)."""
    value, force = np.zeros(places.shape[:-1]), np.zeros(places.shape)
    for owner, points in enumerate(_POINTS):
        away = places[..., None, :] - points
        squared = np.square(away).sum(axis=-1)
        found, slope = potentials(squared, alpha)["attraction" if owner == own else "repulsion"]
        value += found.sum(axis=-1)
        force -= 2 * (slope[..., None] * away).sum(axis=-2)
    return value, force


def _profiles(potential_axis: Axes, force_axis: Axes) -> None:
    distance = np.linspace(0.06, 0.8, 400)
    shades = ("#9ECAE1", "#4292C6", "#08519C")
    for alpha, colour in zip(DECAYS, shades, strict=True):
        for name, dash in (("attraction", "-"), ("repulsion", (0, (5, 1.5)))):
            value, slope = potentials(distance**2, alpha)[name]
            label = f"{name}, α = {alpha:g}"
            potential_axis.plot(distance, value, color=colour, linestyle=dash, label=label)
            force_axis.plot(distance, _gap(np.abs(2 * distance * slope)), color=colour, linestyle=dash)
    force_axis.plot(distance, np.where(distance > DELTA, 2 * distance, np.nan), color="#777777")
    force_axis.text(0.78, 1.75, "contrastive", ha="right", fontsize=7, color="#555555")
    for axis in (potential_axis, force_axis):
        axis.axvline(DELTA, color="#888888", linestyle=":", linewidth=1)
        axis.set(xlabel="distance", xlim=(0, 0.8))
    potential_axis.set(ylabel="potential", ylim=(-1.15, 3), title="Potential of one point")
    potential_axis.legend(fontsize=6.5, labelspacing=0.25, handlelength=2.2)
    force_axis.set(ylabel="strength of the force", yscale="log", ylim=(0.05, 300), title="Its force")


def _gap(values: np.ndarray) -> np.ndarray:
    """`values` with zeros as gaps: a force of zero has no place on a logarithmic axis."""
    return np.where(values > 0, values, np.nan)


def _field(axis: Axes, own: int) -> None:
    line = np.linspace(-_EDGE, _EDGE, 161)
    places = np.stack(np.meshgrid(line, line), axis=-1)
    value, _ = class_field(own, places)
    levels = np.linspace(-4, 4, 33)
    axis.contourf(line, line, value, levels=levels, cmap="cividis", extend="both").set_rasterized(True)
    axis.contour(line, line, value, levels=np.linspace(-3.6, 0, 10), colors="white", linewidths=0.4, linestyles="solid")
    coarse = np.linspace(-0.93, 0.93, 17)
    arrows = np.stack(np.meshgrid(coarse, coarse), axis=-1)
    _, force = class_field(own, arrows)
    length = np.linalg.norm(force, axis=-1, keepdims=True)
    unit = np.divide(force, length, out=np.zeros_like(force), where=length > 1e-9)
    axis.quiver(*np.moveaxis(arrows, -1, 0), *np.moveaxis(unit, -1, 0), color="white", alpha=0.8, scale=26, width=0.005)
    for owner, (points, colour, marker) in enumerate(zip(_POINTS, _COLOURS, "os", strict=True)):
        axis.plot(*points.T, marker, color=colour, markeredgecolor="white", markersize=6, label=f"class {owner + 1}")
    axis.set(title=f"Field of class {own + 1}", xticks=[], yticks=[], aspect="equal")
    axis.grid(visible=False)
