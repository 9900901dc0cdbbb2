"""Figures without training: their numbers against formulas written out here, and the shipped page."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import gammaln, ive

from probmetric.directional import VonMisesFisher

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples" / "theory"))

bessel_ratio, distance_surfaces, draw, normaliser_approximations, potential_fields = map(
    importlib.import_module,
    ("bessel_ratio", "distance_surfaces", "draw", "normaliser_approximations", "potential_fields"),
)

SHIPPED = ROOT / "reports" / "theory"


def log_c(kappa, dim):
    order = dim / 2 - 1
    return order * np.log(kappa) - dim / 2 * math.log(2 * math.pi) - np.log(ive(order, kappa)) - kappa


def log_area(dim):
    return math.log(2) + dim / 2 * math.log(math.pi) - gammaln(dim / 2)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theory")
    return folder, draw.write(folder)


def test_every_figure_is_written_small_and_shown_with_its_words(written):
    folder, paths = written
    assert {path.stem for path in paths if path.suffix == ".png"} == set(draw.FIGURES)
    page = (folder / "README.md").read_text()
    for path in paths:
        assert 0 < path.stat().st_size < 200_000
        if path.suffix == ".json":
            words = json.loads(path.read_text())
            assert words["caption"] in page
            assert f"![{words['alt']}]({path.stem}.png)" in page


def test_the_shipped_page_is_the_one_the_code_writes(written):
    for path in written[1]:
        assert (SHIPPED / path.name).stat().st_size > 0
        if path.suffix == ".json":
            assert json.loads((SHIPPED / path.name).read_text())["caption"] == json.loads(path.read_text())["caption"]


def test_isotropic_distances_follow_their_formulas():
    found = distance_surfaces.isotropic_distances()
    points, dim, proxy = distance_surfaces._POINTS, distance_surfaces.DIM, distance_surfaces.KAPPA_P
    kappa = np.linspace(0, distance_surfaces.LARGEST, points)[1:, None]
    cosine = np.cos(np.linspace(0, np.pi, points))[None, :-1]
    joint = np.sqrt(kappa**2 + proxy**2 + 2 * kappa * proxy * cosine)
    apart = joint > 1e-6
    ratio = ive(dim / 2, kappa) / ive(dim / 2 - 1, kappa)
    with np.errstate(all="ignore"):
        expected = {
            "L2": kappa**2 + proxy**2 - 2 * kappa * proxy * cosine,
            "EL-vMF": log_c(joint, dim) - log_c(kappa, dim) - log_c(proxy, dim),
            "B-vMF": log_c(joint / 2, dim) - (log_c(kappa, dim) + log_c(proxy, dim)) / 2,
            "KL-vMF": log_c(kappa, dim) - log_c(proxy, dim) + ratio * (kappa - proxy * cosine),
        }
    for name, values in expected.items():
        np.testing.assert_allclose(found[name][1:, :-1][apart], values[apart], atol=1e-9, err_msg=name)


def test_a_sample_that_says_nothing_is_as_far_as_the_sphere_is_large():
    """With kappa_z = 0 the expected likelihood is one over the area, whatever the angle: the proxy integrates to 1."""
    distance = distance_surfaces.expected_nonisotropic_distance()
    np.testing.assert_allclose(distance[0], log_area(distance_surfaces.DIM), atol=0.02)


def test_expected_distances_agree_with_draws_from_the_sample_itself():
    distance, points = distance_surfaces.expected_nonisotropic_distance(), distance_surfaces._POINTS
    proxy, generator = distance_surfaces._proxy("exact"), torch.Generator().manual_seed(1)
    for row, column in ((points - 1, 0), (points // 2, points // 6), (points // 4, points // 4)):
        angle = torch.tensor(math.pi * column / (points - 1), dtype=torch.float64)
        mode = distance_surfaces._points(angle, torch.zeros_like(angle))
        kappa = torch.tensor(distance_surfaces.LARGEST * row / (points - 1), dtype=torch.float64)
        draws = VonMisesFisher(mode, kappa).sample((40_000,), generator=generator)
        direct = math.log(40_000) - float(proxy.log_prob(draws).logsumexp(dim=0))
        assert distance[row, column] == pytest.approx(direct, abs=0.05)


def test_errors_of_the_approximations_are_those_of_their_printed_formulas():
    kappa, dim = np.array([10.0, 50.0, 200.0]), 128
    exact = log_c(kappa, dim) + log_area(dim)
    fit = -0.01909 * kappa - 0.003355 * kappa**2
    found = normaliser_approximations.error("quadratic fit", kappa, np.array([dim]))[0]
    np.testing.assert_allclose(found, np.abs(fit - exact), atol=1e-9)
    slope = normaliser_approximations.decay_and_slope("quadratic fit", kappa, dim)[1]
    np.testing.assert_allclose(slope, 0.01909 + 2 * 0.003355 * kappa)


def test_ratio_and_starting_points():
    kappa = np.array([0.5, 5.0, 50.0])
    exact, approximate = bessel_ratio.ratios(kappa, 8)
    np.testing.assert_allclose(exact, ive(4, kappa) / ive(3, kappa), rtol=1e-12)
    a, b = 3.5, 4.5
    np.testing.assert_allclose(approximate, kappa / 2 * (1 / (a + np.hypot(b, kappa)) + 1 / (a + np.hypot(a, kappa))))
    lam = bessel_ratio.RESULTANT
    assert bessel_ratio.initial_norm(512, "as_published") == pytest.approx(lam / (1 - lam**2) * 511, rel=0.01)
    start = np.array([bessel_ratio.initial_norm(512, "corrected")])
    assert bessel_ratio.ratios(start, 512)[0] == pytest.approx(lam, abs=2e-3)


def test_potentials_are_equations_1_and_2_in_units_of_contact():
    delta, alpha = potential_fields.DELTA, 2.0
    distance = np.array([0.1, 0.15, 0.3, 0.6])
    found = potential_fields.potentials(distance**2, alpha)
    attraction = np.where(distance < delta, -(delta**-alpha), -(distance**-alpha))
    repulsion = np.where(distance < delta, distance**-alpha, delta**-alpha)
    np.testing.assert_allclose(found["attraction"][0], attraction * delta**alpha)
    np.testing.assert_allclose(found["repulsion"][0], repulsion * delta**alpha - 1, atol=1e-12)


def test_arrows_are_the_negative_gradient_of_the_field():
    places = np.array([[0.1, 0.05], [-0.3, 0.3], [0.5, 0.31], [-0.7, -0.3]])
    step = 1e-6
    for own in (0, 1):
        _, force = potential_fields.class_field(own, places)
        for axis, shift in enumerate(np.eye(2) * step):
            high, low = (potential_fields.class_field(own, places + sign * shift)[0] for sign in (1, -1))
            np.testing.assert_allclose(force[:, axis], -(high - low) / (2 * step), rtol=1e-4, atol=1e-6)
