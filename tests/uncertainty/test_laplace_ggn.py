"""The closed-form curvature against autograd, in float64, for every variant."""

import itertools

import pytest
import torch
from ggn_reference import reference_diagonal, reference_ggn
from hypothesis import given, settings
from hypothesis import strategies as st

from probmetric.uncertainty import laplace
from probmetric.uncertainty.laplace import ggn as _ggn
from probmetric.uncertainty.laplace.posterior import DiagonalSampler

VARIANTS = list(
    itertools.product(
        ["euclidean", "arccos"], ["fixed", "positive", "full"], ["corrected", "as_published"], [True, False]
    )
)


def problem(*, bias, images=7, Z=4, D=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features, weight, b = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in [(images, D), (Z, D), (Z,)]
    )
    labels = torch.arange(images) % 3
    return features, weight, b if bias else None, labels


def outputs(features, weight, bias):
    return features @ weight.T + (0 if bias is None else bias)


def assert_equal(found, expected):
    scale = expected[0].abs().max()
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            assert torch.allclose(one, other, rtol=0, atol=1e-10 * float(scale)), (one - other).abs().max()


@pytest.mark.parametrize(("geometry", "approximation", "fidelity", "bias"), VARIANTS)
@pytest.mark.parametrize("weights", ["mined", "dataset", "random"])
def test_closed_form_equals_autograd(geometry, approximation, fidelity, bias, weights):
    features, weight, b, labels = problem(bias=bias)
    z = outputs(features, weight, b)
    if weights == "mined":
        pairs, target, _ = laplace.mined_pairs(z, labels, margin=0.4)
        target = laplace.weigh_negatives(target, 0.3)
    elif weights == "dataset":
        pairs, target, _ = laplace.dataset_pairs(z, labels, margin=1.2)
    else:
        pairs = torch.randint(0, len(features), (12, 2), generator=torch.Generator().manual_seed(2))
        target = torch.randn(12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert len(pairs) > 3
    assert target.min() < 0 < target.max()
    options = {"geometry": geometry, "approximation": approximation, "fidelity": fidelity}
    assert_equal(
        laplace.diag_ggn(features, weight, b, pairs, target, **options),
        reference_diagonal(features, weight, b, pairs, target, **options),
    )


@pytest.mark.parametrize("geometry", ["euclidean", "arccos"])
def test_blocks_of_pairs_add_up(geometry, monkeypatch):
    features, weight, bias, labels = problem(bias=True, images=30, seed=4)
    pairs, target, _ = laplace.dataset_pairs(outputs(features, weight, bias), labels, margin=2.0)
    options = {"geometry": geometry, "approximation": "full"}
    whole = laplace.diag_ggn(features, weight, bias, pairs, target, **options)
    monkeypatch.setattr(_ggn, "_MAX_IMAGES", 10)
    monkeypatch.setattr(_ggn, "_PAIR_ROWS", 3)
    assert_equal(laplace.diag_ggn(features, weight, bias, pairs, target, **options), whole)


def test_repeated_and_reversed_pairs_add_up():
    features, weight, bias, _ = problem(bias=True)
    once = laplace.diag_ggn(
        features, weight, bias, torch.tensor([[0, 1]]), torch.tensor([3.0]), geometry="arccos", approximation="full"
    )
    many = laplace.diag_ggn(
        features,
        weight,
        bias,
        torch.tensor([[0, 1], [1, 0], [0, 1]]),
        torch.tensor([1.0, 1.5, 0.5]),
        geometry="arccos",
        approximation="full",
    )
    assert_equal(many, once)


def test_no_pairs_and_zero_outputs_contribute_nothing():
    features, weight, bias, _ = problem(bias=False)
    empty = laplace.diag_ggn(features, weight, bias, torch.zeros(0, 2, dtype=torch.long), torch.zeros(0))
    assert empty[0].shape == weight.shape
    assert empty[0].abs().max() == 0
    features[2] = 0
    result, _ = laplace.diag_ggn(features, weight, None, torch.tensor([[2, 2]]), torch.ones(1), approximation="full")
    assert torch.equal(result, torch.zeros_like(result))


def test_released_sign_differs_only_for_arccos_with_cross_terms():
    features, weight, bias, labels = problem(bias=True)
    pairs, target, _ = laplace.dataset_pairs(outputs(features, weight, bias), labels, margin=2.0)
    for geometry, approximation in itertools.product(["euclidean", "arccos"], ["fixed", "positive", "full"]):
        a, b = (
            laplace.diag_ggn(
                features, weight, bias, pairs, target, geometry=geometry, approximation=approximation, fidelity=fidelity
            )[0]
            for fidelity in ("corrected", "as_published")
        )
        assert torch.equal(a, b) == (geometry == "euclidean" or approximation == "fixed")


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
    pairs, target, _ = laplace.dataset_pairs(features @ weight.T, labels, margin=1.0)
    options = {"geometry": "euclidean", "approximation": approximation, "fidelity": "corrected"}
    matrix = reference_ggn(features, weight, None, pairs, target, **options)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-10
    diagonal, _ = laplace.diag_ggn(features, weight, None, pairs, target, **options)
    assert diagonal.min() > -1e-12


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
    pairs, target, _ = laplace.dataset_pairs(features @ weight.T, labels, margin=margin)
    positive, fixed, full = (
        laplace.diag_ggn(features, weight, None, pairs, target, approximation=approximation)[0]
        for approximation in ("positive", "fixed", "full")
    )
    rounding = 1e-12 * float(positive.max())
    assert float(positive.min()) > -rounding
    assert float(fixed.min()) > -rounding
    for diagonal in (positive, fixed, full):
        std = DiagonalSampler(diagonal, None, precision).weight_std
        assert bool(((std > 0) & (std <= precision**-0.5 * (1 + 1e-12))).all())


def test_proposition_f3_all_negatives_inside_the_margin_give_zero():
    features, weight, labels = balanced(9)
    pairs, target, _ = laplace.dataset_pairs(features @ weight.T, labels, margin=2.1)
    diagonal, _ = laplace.diag_ggn(features, weight, None, pairs, target)
    assert diagonal.abs().max() < 1e-12


def test_proposition_f1_relu_makes_the_full_diagonal_a_valid_covariance():
    """Without the ReLU `full` has negative entries; with it every sampling variance is positive and at most 1/δ."""
    features, weight, labels = balanced(3)
    pairs, target, _ = laplace.dataset_pairs(features @ weight.T, labels, margin=2.1)
    diagonal, _ = laplace.diag_ggn(features, weight, None, pairs, target, approximation="full")
    assert diagonal.min() < 0
    std = DiagonalSampler(diagonal, None, 4.0).weight_std
    assert torch.isfinite(std).all()
    assert std.min() > 0
    assert std.max() <= 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"geometry": "eucldean"}, "did you mean 'euclidean'"),
        ({"approximation": "diag"}, "Allowed: fixed, full, positive"),
        ({"pairs": torch.tensor([[0, 99]]), "target": torch.ones(1)}, "rows 0..6"),
        ({"target": torch.ones(5)}, r"\(P, 2\) and \(P,\)"),
        ({"bias": torch.ones(9, dtype=torch.float64)}, "one per row of weight"),
        ({"weight": torch.ones(4, 2, dtype=torch.float64)}, r"\(N, D\) and \(Z, D\)"),
    ],
)
def test_bad_input_is_named(change, message):
    features, weight, bias, _ = problem(bias=True)
    arguments = {
        "features": features,
        "weight": weight,
        "bias": bias,
        "pairs": torch.tensor([[0, 1]]),
        "target": torch.ones(1),
    }
    with pytest.raises(ValueError, match=message):
        laplace.diag_ggn(**(arguments | change))
