"""Kronecker eigenbasis curvature, and a linear model whose posterior is known."""

import pytest
import torch
from ggn_reference import reference_ggn
from torch import nn
from uncertainty_helpers import TinyEncoder, tiny_batches

from probmetric.uncertainty import create_uncertainty
from probmetric.uncertainty.laplace import dataset_pairs
from probmetric.uncertainty.laplace.posterior import stored_sampler


class Linear(nn.Module):
    """A linear model: its features are the images themselves."""

    def __init__(self, weight):
        super().__init__()
        self.head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        with torch.no_grad():
            self.head.weight.copy_(weight)

    def features(self, images):
        return images.flatten(1)

    def forward(self, images):
        return self.head(self.features(images))


def fit(encoder, batches, **options):
    uncertainty = create_uncertainty("laplace", **({"geometry": "euclidean", "margin": 1.0, "samples": 10} | options))
    return uncertainty, uncertainty.fit(encoder, batches, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("geometry", "approximation"), [("euclidean", "positive"), ("arccos", "full")])
def test_kronecker_diagonal_is_the_rotated_gauss_newton_matrix(bias, geometry, approximation):
    encoder = TinyEncoder(bias=bias).eval()
    images, labels = tiny_batches(1, size=8)[0]
    options = {"geometry": geometry, "approximation": approximation}
    _, posterior = fit(encoder, [(images, labels)], structure="kronecker", pairs="dataset", **options)
    encoder.double()
    with torch.no_grad():
        features = encoder.features(images.double())
        targets, _ = dataset_pairs(encoder.head(features), labels, margin=1.0)
        weight = encoder.head.weight.detach()
        if bias:
            weight = torch.cat([weight, encoder.head.bias.detach()[:, None]], dim=1)
            features = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    dense = reference_ggn(features, weight, targets, fidelity="corrected", **options)
    basis = torch.kron(posterior["output_basis"].double(), posterior["input_basis"].double())
    expected = (basis.T @ dense @ basis).diagonal().reshape(weight.shape)
    scale = float(expected.abs().max())
    assert torch.allclose(posterior["weight_curvature"].double(), expected, atol=1e-5 * scale)


@pytest.mark.parametrize("approximation", ["fixed", "positive"])
def test_kronecker_basis_holds_more_of_the_matrix_than_the_coordinates(approximation):
    """The off-diagonal rest of the Gauss-Newton matrix is smaller in the Kronecker eigenbasis."""
    encoder = TinyEncoder(bias=False).eval()
    images, labels = tiny_batches(1, size=16)[0]
    _, posterior = fit(encoder, [(images, labels)], structure="kronecker", pairs="dataset", approximation=approximation)
    encoder.double()
    with torch.no_grad():
        features = encoder.features(images.double())
        targets, _ = dataset_pairs(encoder.head(features), labels, margin=1.0)
    options = {"geometry": "euclidean", "approximation": approximation, "fidelity": "corrected"}
    dense = reference_ggn(features, encoder.head.weight.detach(), targets, **options)
    basis = torch.kron(posterior["output_basis"].double(), posterior["input_basis"].double())
    rotated = basis.T @ dense @ basis

    def rest(matrix):
        return float((matrix - torch.diag(matrix.diagonal())).norm() / matrix.norm())

    assert rest(rotated) < 0.8 * rest(dense)


def test_kronecker_samples_have_the_posterior_covariance():
    encoder = TinyEncoder(bias=True).eval()
    _, posterior = fit(encoder, tiny_batches(), structure="kronecker")
    features = encoder.features(tiny_batches(1)[0][0])[:3].detach()
    moves = torch.stack(list(stored_sampler(encoder.head, posterior).moves(features, 6000, seed=0)))
    basis = torch.kron(posterior["output_basis"], posterior["input_basis"])
    variance = 1 / (posterior["weight_curvature"].clamp_min(0) + float(posterior["prior_precision"])).flatten()
    covariance = basis @ torch.diag(variance) @ basis.T
    inputs = torch.cat([features, torch.ones(3, 1)], dim=1)
    for k in range(3):
        jacobian = torch.kron(torch.eye(4), inputs[k][None])
        expected = jacobian @ covariance @ jacobian.T
        result = torch.cov(moves[:, k].T.detach())
        assert torch.allclose(result, expected, atol=0.08 * float(expected.abs().max()))


def test_linear_model_with_known_posterior():
    """One-hot inputs and outputs on the axes make the fixed curvature exactly diagonal, hence the posterior exact.

    With z_k = r_k·(axis a_k), the model linearised at W predicts u_k + P_k W e_k / r_k, P_k the projection orthogonal
    to the axis. Each image is in one of two positive pairs, which observes it with precision 1/2, and the prior is δI:
    the posterior variance of W_ik is 1/(δ + 1/(2r²)) off the axis and 1/δ on it.
    """
    radius, delta = 2.0, 0.5
    weight = torch.tensor([[radius, radius, 0.0, 0.0], [0.0, 0.0, radius, radius]])
    encoder = Linear(weight)
    images, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    _, posterior = fit(encoder, [(images, labels)], pairs="dataset", prior="fixed", prior_precision=delta, margin=0.1)
    pair_weight = 1 / 2
    off_axis = 1 / (delta + pair_weight / radius**2)
    expected = torch.tensor([[1 / delta] * 2 + [off_axis] * 2, [off_axis] * 2 + [1 / delta] * 2])
    std = stored_sampler(encoder.head, posterior).std
    assert torch.allclose(std.square(), expected, rtol=1e-6)
    moves = torch.stack(list(stored_sampler(encoder.head, posterior).moves(images, 20000, seed=0)))
    assert torch.allclose(moves.var(0), expected.T, rtol=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_positive_precision_is_that_of_bayesian_linear_regression(seed):
    """Posterior precision = prior + design matrix of the linearised model, written as a regression on u₁ − u₂."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 4, generator=generator)
    images, labels = torch.randn(6, 4, generator=generator), torch.arange(6) % 2
    encoder = Linear(weight)
    _, posterior = fit(
        encoder, [(images, labels)], approximation="positive", pairs="dataset", prior="fixed", prior_precision=2.0
    )

    def directions(w):
        return torch.nn.functional.normalize(images.double() @ w.reshape(3, 4).T, dim=1)

    jacobian = torch.autograd.functional.jacobian(directions, weight.double().flatten())
    positives = [(i, j) for i in range(6) for j in range(i + 1, 6) if labels[i] == labels[j]]
    design = torch.cat([jacobian[i] - jacobian[j] for i, j in positives]) / len(positives) ** 0.5
    precision = (design.T @ design + 2.0 * torch.eye(12, dtype=torch.float64)).diagonal().reshape(3, 4)
    assert torch.allclose(posterior["weight_curvature"].double() + 2.0, precision, rtol=1e-6)


def test_kronecker_posteriors_of_double_precision_are_fitted():
    encoder = TinyEncoder().double()
    batches = [(images.double(), labels) for images, labels in tiny_batches()]
    _, posterior = fit(encoder, batches, structure="kronecker")
    assert all(value.isfinite().all() for value in posterior.values() if torch.is_tensor(value))
