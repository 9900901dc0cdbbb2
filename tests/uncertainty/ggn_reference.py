"""Gauss-Newton curvature of a pair by autograd, written from the definition JᵀHJ and nothing else."""

import torch
import torch.nn.functional as F
from torch.autograd.functional import hessian, jacobian


def reference_pair_matrix(h1, h2, weight, bias, *, geometry, drop_cross=False, flip_cross=False):
    """Dense GGN (parameters, parameters) of ½|u1 - u2|² for one pair, W flattened row-major then b."""
    Z, D = weight.shape
    theta = weight.reshape(-1) if bias is None else torch.cat([weight.reshape(-1), bias])

    def outputs(parameters):
        W = parameters[: Z * D].reshape(Z, D)
        b = 0 if bias is None else parameters[Z * D :]
        z = torch.stack([W @ h1 + b, W @ h2 + b])
        return (F.normalize(z, dim=1) if geometry == "euclidean" else z).reshape(-1)

    def loss(flat):
        z = flat.reshape(2, Z)
        u = z if geometry == "euclidean" else z / z.norm(dim=1, keepdim=True)
        return 0.5 * (u[0] - u[1]).square().sum()

    J = jacobian(outputs, theta)
    H = hessian(loss, outputs(theta))
    if drop_cross or flip_cross:
        factor = 0.0 if drop_cross else -1.0
        H = H.clone()
        H[:Z, Z:] *= factor
        H[Z:, :Z] *= factor
    return J.T @ H @ J


def reference_ggn(features, weight, bias, pairs, target, *, geometry, approximation, fidelity):
    """Dense sum over pairs with the approximation of the paper applied to the output Hessian."""
    size = weight.numel() + (0 if bias is None else bias.numel())
    total = torch.zeros(size, size, dtype=weight.dtype)
    for (i, j), y in zip(pairs.tolist(), target.tolist(), strict=True):
        if approximation == "positive" and y <= 0:
            continue
        total += y * reference_pair_matrix(
            features[i],
            features[j],
            weight,
            bias,
            geometry=geometry,
            drop_cross=approximation == "fixed",
            flip_cross=fidelity == "as_published" and geometry == "arccos" and approximation != "fixed",
        )
    return total


def reference_diagonal(*args, **options):
    """Diagonal of `reference_ggn` as (weight_diag, bias_diag or None)."""
    _, weight, bias, _, _ = args
    diagonal = reference_ggn(*args, **options).diagonal()
    weight_diag = diagonal[: weight.numel()].reshape(weight.shape)
    return weight_diag, None if bias is None else diagonal[weight.numel() :]
