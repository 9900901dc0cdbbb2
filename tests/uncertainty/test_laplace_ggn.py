"""The closed-form curvature against autograd, in float64, for every variant."""

import itertools

import pytest
import torch
from ggn_reference import reference_diagonal, reference_ggn
from hypothesis import given, settings
from hypothesis import strategies as st

from probmetric.uncertainty import laplace
from probmetric.uncertainty.laplace import ggn
from probmetric.uncertainty.laplace.posterior import stored_sampler

VARIANTS = list(
    itertools.product(
        ["euclidean", "arccos"], ["fixed", "positive", "full"], ["corrected", "as_published"], [True, False]
    )
)


def problem(*, bias, images=7, Z=4, D=3, seed=0):
    """Inputs (N, D or D + 1), with a column of ones for a bias, weight (Z, as many), and labels."""
    generator = torch.Generator().manual_seed(seed)
    features, weight, b = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in [(images, D), (Z, D), (Z, 1)]
    )
    labels = torch.arange(images) % 3
    if not bias:
        return features, weight, labels
    return torch.cat([features, torch.ones(images, 1, dtype=torch.float64)], dim=1), torch.cat([weight, b], 1), labels


def diagonal(inputs, weight, targets, **options):
    return laplace.diag_ggn(inputs, inputs @ weight.T, targets, **options)


def assert_equal(diagonal, expected):
    assert torch.allclose(diagonal, expected, rtol=0, atol=1e-10 * float(expected.abs().max()))


@pytest.mark.parametrize(("geometry", "approximation", "fidelity", "bias"), VARIANTS)
@pytest.mark.parametrize("weights", ["mined", "dataset", "random"])
def test_closed_form_equals_autograd(geometry, approximation, fidelity, bias, weights):
    inputs, weight, labels = problem(bias=bias)
    if weights == "mined":
        targets, _ = laplace.mined_pairs(inputs @ weight.T, labels, margin=0.4)
        targets = laplace.weigh_negatives(targets, 0.3)
    elif weights == "dataset":
        targets, _ = laplace.dataset_pairs(inputs @ weight.T, labels, margin=1.2)
    else:
        targets = torch.randn(7, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        targets *= torch.rand(7, 7, generator=torch.Generator().manual_seed(2)) < 0.25
    assert (targets != 0).sum() > 3
    assert targets.min() < 0 < targets.max()
    options = {"geometry": geometry, "approximation": approximation, "fidelity": fidelity}
    assert_equal(diagonal(inputs, weight, targets, **options), reference_diagonal(inputs, weight, targets, **options))


@pytest.mark.parametrize("geometry", ["euclidean", "arccos"])
def test_blocks_of_pairs_add_up(geometry, monkeypatch):
    inputs, weight, labels = problem(bias=True, images=30, seed=4)
    targets, _ = laplace.dataset_pairs(inputs @ weight.T, labels, margin=2.0)
    options = {"geometry": geometry, "approximation": "full"}
    whole = diagonal(inputs, weight, targets, **options)
    monkeypatch.setattr(ggn, "_PAIR_ROWS", 3)
    assert_equal(diagonal(inputs, weight, targets, **options), whole)


def test_a_pair_and_its_reverse_add_up():
    inputs, weight, _ = problem(bias=True)
    options = {"geometry": "arccos", "approximation": "full"}
    once, twice = torch.zeros(2, 7, 7)
    once[0, 1] = 3.0
    twice[0, 1], twice[1, 0] = 1.5, 1.5
    assert_equal(diagonal(inputs, weight, twice, **options), diagonal(inputs, weight, once, **options))


def test_no_pairs_and_zero_outputs_contribute_nothing():
    inputs, weight, _ = problem(bias=False)
    assert torch.equal(diagonal(inputs, weight, torch.zeros(7, 7)), torch.zeros_like(weight))
    inputs[2] = 0
    targets = torch.zeros(7, 7)
    targets[2, 2] = 1.0
    assert torch.equal(diagonal(inputs, weight, targets, approximation="full"), torch.zeros_like(weight))


def test_released_sign_differs_only_for_arccos_with_cross_terms():
    inputs, weight, labels = problem(bias=True)
    targets, _ = laplace.dataset_pairs(inputs @ weight.T, labels, margin=2.0)
    for geometry, approximation in itertools.product(["euclidean", "arccos"], ["fixed", "positive", "full"]):
        a, b = (
            diagonal(inputs, weight, targets, geometry=geometry, approximation=approximation, fidelity=fidelity)
            for fidelity in ("corrected", "as_published")
        )
        assert torch.equal(a, b) == (geometry == "euclidean" or approximation == "fixed")


def deviation(curvature, precision):
    """Standard deviations of the posterior of a layer of this curvature."""
    head = torch.nn.Linear(curvature.shape[1], curvature.shape[0], bias=False, dtype=torch.float64)
    posterior = {"weight_curvature": curvature, "prior_precision": torch.tensor(precision, dtype=torch.float64)}
    return stored_sampler(head, posterior).std


def balanced(seed, classes=3, per_class=3):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes * per_class) % classes
    features = torch.randn(len(labels), 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return features, weight, labels


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("approximation", ["positive", "fixed"])
def test_propositions_f2_f3_euclidean_curvature_is_positive_semidefinite(seed, approximation):
    """F.2 (positive) and F.3 (fixed, dataset weights, balanced classes): the *matrix* has no negative eigenvalue."""
    features, weight, labels = balanced(seed)
    targets, _ = laplace.dataset_pairs(features @ weight.T, labels, margin=1.0)
    options = {"geometry": "euclidean", "approximation": approximation, "fidelity": "corrected"}
    matrix = reference_ggn(features, weight, targets, **options)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-10
    curvature = diagonal(features, weight, targets, **options)
    assert curvature.min() > -1e-12


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    classes=st.integers(2, 4),
    per_class=st.integers(2, 4),
    margin=st.floats(0.05, 2.5),
    precision=st.floats(1e-3, 1e6),
)
def test_propositions_hold_for_any_balanced_batch(seed, classes, per_class, margin, precision):
    """`positive` and `fixed` (F.2, F.3) have no negative diagonal; after the ReLU (F.1) every variance is proper."""
    features, weight, labels = balanced(seed, classes, per_class)
    targets, _ = laplace.dataset_pairs(features @ weight.T, labels, margin=margin)
    positive, fixed, full = (
        diagonal(features, weight, targets, approximation=approximation)
        for approximation in ("positive", "fixed", "full")
    )
    rounding = 1e-12 * float(positive.max())
    assert float(positive.min()) > -rounding
    assert float(fixed.min()) > -rounding
    for curvature in (positive, fixed, full):
        std = deviation(curvature, precision)
        assert bool(((std > 0) & (std <= precision**-0.5 * (1 + 1e-12))).all())


def test_proposition_f3_all_negatives_inside_the_margin_give_zero():
    features, weight, labels = balanced(9)
    targets, _ = laplace.dataset_pairs(features @ weight.T, labels, margin=2.1)
    curvature = diagonal(features, weight, targets)
    assert curvature.abs().max() < 1e-12


def test_proposition_f1_relu_makes_the_full_diagonal_a_valid_covariance():
    """Without the ReLU `full` has negative entries; with it every sampling variance is positive and at most 1/δ."""
    features, weight, labels = balanced(3)
    targets, _ = laplace.dataset_pairs(features @ weight.T, labels, margin=2.1)
    curvature = diagonal(features, weight, targets, approximation="full")
    assert curvature.min() < 0
    std = deviation(curvature, 4.0)
    assert torch.isfinite(std).all()
    assert std.min() > 0
    assert std.max() <= 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"geometry": "eucldean"}, "did you mean 'euclidean'"),
        ({"approximation": "diag"}, "Allowed: fixed, full, positive"),
        ({"targets": torch.zeros(5, 7)}, r"targets \(5, 7\) must be \(N, D\), \(N, Z\) and \(N, N\)"),
        ({"outputs": torch.ones(6, 4)}, r"outputs \(6, 4\)"),
    ],
)
def test_bad_input_is_named(change, message):
    inputs, weight, _ = problem(bias=True)
    arguments = {"inputs": inputs, "outputs": inputs @ weight.T, "targets": torch.zeros(7, 7)}
    with pytest.raises(ValueError, match=message):
        laplace.diag_ggn(**(arguments | change))
