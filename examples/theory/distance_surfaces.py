"""The seven sample-proxy distances over the direction and the concentration of a sample (paper 000, figure 3).

The sample has natural parameter nu_z = kappa_z mu_z, the proxy kappa_p mu_p. Five distances depend on kappa_z and the
angle between them; those to a non-isotropic proxy depend on the direction of that angle as well.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from probmetric.directional import VonMisesFisher, bhattacharyya, expected_likelihood, kl, log_normalizer
from probmetric.directional.nonisotropic import NonIsotropicVonMisesFisher, Normalizer
from probmetric.reporting.figures import _style

TITLE = "The distances between a sample and a proxy"
DIM = 8
KAPPA_P = 10.0
LARGEST = 20.0
BROAD, NARROW = 4.0, 16.0
_POINTS = 91
_DRAWS = 20_000


def draw() -> _style.Drawing:
    """Contours of the distances."""
    figure, axes = _style.grid(2, 4, panel_height=2.05)
    places = [axis for row in axes for axis in row]
    angle, kappa = np.linspace(0, 180, _POINTS), np.linspace(0, LARGEST, _POINTS)
    surfaces = isotropic_distances()
    for axis, (name, distance) in zip(places, surfaces.items(), strict=False):
        _contours(axis, angle, kappa, distance, name)
        axis.set(xlabel="angle (°)", xticks=[0, 90, 180])
    off = np.linspace(-90, 90, _POINTS)
    for axis, normalizer, name in zip(places[5:], ("paper", "exact"), ("nivMF", "nivMF, exact"), strict=False):
        _contours(axis, off, off, nonisotropic_distance(normalizer), name)  # type: ignore[arg-type]
        axis.set(xlabel="broad angle (°)", ylabel="narrow angle (°)", xticks=[-90, 0, 90], yticks=[-90, 0, 90])
    _contours(places[7], angle, kappa, expected_nonisotropic_distance(), "EL-nivMF")
    places[7].set(xlabel="broad angle (°)", xticks=[0, 90, 180])
    for axis in (*places[:5], places[7]):
        axis.set_yticks([0, 10, 20])
        axis.axhline(KAPPA_P, color="white", linestyle=":", linewidth=1)
    for axis in (places[0], places[4], places[7]):
        axis.set_ylabel("κ of the sample")
    return _style.Drawing(figure, TITLE, _caption(), _alt(surfaces))


def isotropic_distances() -> dict[str, np.ndarray]:
    """Name -> distance (K, T) over kappa_z in 0..LARGEST and the angle in 0..180 degrees."""
    angle = torch.linspace(0, torch.pi, _POINTS, dtype=torch.float64)
    kappa = torch.linspace(0, LARGEST, _POINTS, dtype=torch.float64)
    nu_z = (kappa[:, None, None] * _points(angle, torch.zeros_like(angle))).reshape(-1, DIM)
    nu_p = KAPPA_P * torch.eye(DIM, dtype=torch.float64)[:1]
    found: dict[str, Tensor] = {
        "Cos": -angle.cos().expand(_POINTS, -1),
        "L2": (nu_z - nu_p).square().sum(dim=1),
        "B-vMF": -bhattacharyya(nu_z, nu_p),
        "EL-vMF": -expected_likelihood(nu_z, nu_p),
        "KL-vMF": kl(nu_z, nu_p),
    }
    return {name: distance.reshape(_POINTS, _POINTS).numpy() for name, distance in found.items()}


def nonisotropic_distance(normalizer: Normalizer) -> np.ndarray:
    """-log rho (A, A) of samples off the mode by -90..90 degrees along the narrow (rows) and the broad axis."""
    arc = torch.linspace(-torch.pi / 2, torch.pi / 2, _POINTS, dtype=torch.float64)
    broad, narrow = torch.meshgrid(arc, arc, indexing="xy")
    distance: Tensor = -_proxy(normalizer).log_prob(_points(broad, narrow))
    return distance.numpy()


def expected_nonisotropic_distance() -> np.ndarray:
    """d_EL-nivMF (K, T), with the exact normaliser, over kappa_z and the angle along the broad axis, by Monte Carlo.

    All places share one set of weighted draws, so that the surface is smooth: half from the proxy itself, half from
    vMFs spread over these angles.
    """
    angle = torch.linspace(0, torch.pi, _POINTS, dtype=torch.float64)
    mu_z = _points(angle, torch.zeros_like(angle))
    spread = VonMisesFisher(mu_z[::10], torch.tensor(KAPPA_P, dtype=torch.float64), validate_args=False)
    proxy, parts = _proxy("exact"), len(mu_z[::10])
    generator = torch.Generator().manual_seed(0)
    own = proxy.sample((_DRAWS // 2,), generator=generator)
    others = spread.sample((_DRAWS // (2 * parts),), generator=generator).reshape(-1, DIM)
    draws = torch.cat([own, others])
    density = proxy.log_prob(draws)
    mixture = torch.stack(
        [
            density + np.log(len(own) / len(draws)),
            spread.log_prob(draws[:, None]).logsumexp(dim=1) + np.log(len(others) / len(draws) / parts),
        ]
    ).logsumexp(dim=0)
    weight = density - mixture - np.log(len(draws))
    cosine = mu_z @ draws.T
    kappa = torch.linspace(0, LARGEST, _POINTS, dtype=torch.float64)
    rows = [log_normalizer(k, DIM) + (k * cosine + weight).logsumexp(dim=1) for k in kappa]
    return -torch.stack(rows).numpy()


def _proxy(normalizer: Normalizer) -> NonIsotropicVonMisesFisher:
    concentration = torch.full((DIM,), KAPPA_P, dtype=torch.float64)
    concentration[1], concentration[2] = BROAD, NARROW
    mode = torch.eye(DIM, dtype=torch.float64)[0]
    return NonIsotropicVonMisesFisher(mode, concentration, normalizer, validate_args=False)


def _points(broad: Tensor, narrow: Tensor) -> Tensor:
    """Unit vectors (..., DIM) that lie off the first axis by arcs `broad` and `narrow` (...) along the next two."""
    arc = torch.hypot(broad, narrow)
    shrink = torch.sinc(arc / torch.pi)
    points = torch.zeros(*broad.shape, DIM, dtype=torch.float64)
    points[..., 0], points[..., 1], points[..., 2] = arc.cos(), broad * shrink, narrow * shrink
    return points


def _contours(axis: Axes, x: np.ndarray, y: np.ndarray, distance: np.ndarray, name: str) -> None:
    filled = axis.contourf(x, y, distance, levels=12, cmap="viridis")
    filled.set_rasterized(True)
    levels = np.asarray(filled.levels)[1:-1:3]
    lines = axis.contour(x, y, distance, levels=levels, colors="white", linewidths=0.5, linestyles="solid")
    axis.clabel(lines, fontsize=6, inline_spacing=1, fmt="%g")
    axis.grid(visible=False)
    axis.set_title(name)


def _caption() -> str:
    return (
        f"Distance of a sample to a proxy of concentration {KAPPA_P:g} (dotted line) in {DIM} dimensions, with the "
        "exact log C; dark is near. Cos ignores the concentration of the sample. In L2, B-vMF and EL-vMF it acts as an "
        "inverse temperature: the distances of a sure sample (top) rise steeply with the angle, those of an unsure one "
        "hardly at all; KL-vMF is similar and also charges for being unsure. nivMF: a proxy with concentration "
        f"{BROAD:g} along one axis and {NARROW:g} along another; a sample may stray further along the first. With its "
        "exact normaliser the same proxy is densest beside its direction, not on it: the volume that the broad axis "
        f"gains outweighs the angle. EL-nivMF: expected likelihood under that density, by {_DRAWS:,} draws. "
        "Paper 000, figure 3, shows Cos, L2 and B-vMF."
    )


def _alt(surfaces: dict[str, np.ndarray]) -> str:
    sure, unsure = round(0.75 * (_POINTS - 1)), round(0.1 * (_POINTS - 1))
    rise = {name: (d[sure, -1] - d[sure, 0], d[unsure, -1] - d[unsure, 0]) for name, d in surfaces.items()}
    parts = [f"{name} {high:.3g} and {low:.3g}" for name, (high, low) in rise.items()]
    return (
        "Contour plots of eight distances. Rise from 0 to 180 degrees for a sample of concentration "
        f"{0.75 * LARGEST:g} and of {0.1 * LARGEST:g}: {'; '.join(parts)}."
    )
