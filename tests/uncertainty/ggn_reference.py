"""Gauss-Newton curvature of a pair by autograd, written from the definition JᵀHJ and nothing else."""

import torch
import torch.nn.functional as F
from torch.autograd.functional import hessian, jacobian


def reference_pair_matrix(h1, h2, weight, *, geometry, drop_cross=False, flip_cross=False):
    """Dense GGN (parameters, parameters) of ½|u1 - u2|² for one pair, W flattened row-major."""
    Z = len(weight)

    def outputs(parameters):
        W = parameters.reshape(weight.shape)
        z = torch.stack([W @ h1, W @ h2])
        return (F.normalize(z, dim=1) if geometry == "euclidean" else z).reshape(-1)

    def loss(flat):
        z = flat.reshape(2, Z)
        u = z if geometry == "euclidean" else z / z.norm(dim=1, keepdim=True)
        return 0.5 * (u[0] - u[1]).square().sum()

    theta = weight.reshape(-1)
    J = jacobian(outputs, theta)
    H = hessian(loss, outputs(theta))
    if drop_cross or flip_cross:
        factor = 0.0 if drop_cross else -1.0
        H = H.clone()
        H[:Z, Z:] *= factor
        H[Z:, :Z] *= factor
    return J.T @ H @ J


def reference_ggn(inputs, weight, targets, *, geometry, approximation, fidelity):
    """Dense sum over pairs with the approximation of the paper applied to the output Hessian."""
    total = torch.zeros(weight.numel(), weight.numel(), dtype=weight.dtype)
    for i, j in targets.nonzero().tolist():
        if approximation == "positive" and targets[i, j] <= 0:
            continue
        total += targets[i, j] * reference_pair_matrix(
            inputs[i],
            inputs[j],
            weight,
            geometry=geometry,
            drop_cross=approximation == "fixed",
            flip_cross=fidelity == "as_published" and geometry == "arccos" and approximation != "fixed",
        )
    return total


def reference_diagonal(inputs, weight, targets, **options):
    """Diagonal of `reference_ggn`, as the weight."""
    return reference_ggn(inputs, weight, targets, **options).diagonal().reshape(weight.shape)
