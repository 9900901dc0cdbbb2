"""The mathematics of the sphere: exact directional statistics in pure PyTorch, usable on its own.

    normalizer        log C_M(kappa) and A_M(kappa) for every dimension and concentration, with derivatives
    estimation        maximum-likelihood direction and concentration from samples
    von_mises_fisher  } distributions with the `torch.distributions` interface; samples take an explicit generator and
    power_spherical   } have reparameterised gradients
    nonisotropic      the vMF with one concentration per dimension, with its exact normaliser
    kernels           expected likelihood, Bhattacharyya, product kernels and KL for all pairs of vMFs

`torch.distributions.kl_divergence(p, q)` works for p = vMF or Power Spherical and q = vMF.

M is the dimension of the space the sphere lies in; a direction is a unit vector (..., M), a concentration
kappa >= 0.
"""

from .estimation import concentration_from_resultant, fit, fuse
from .kernels import bhattacharyya, expected_likelihood, kl, product_kernel
from .nonisotropic import NonIsotropicVonMisesFisher
from .normalizer import log_normalizer, mean_resultant_length
from .power_spherical import PowerSpherical
from .von_mises_fisher import VonMisesFisher

__all__ = [
    "NonIsotropicVonMisesFisher",
    "PowerSpherical",
    "VonMisesFisher",
    "bhattacharyya",
    "concentration_from_resultant",
    "expected_likelihood",
    "fit",
    "fuse",
    "kl",
    "log_normalizer",
    "mean_resultant_length",
    "product_kernel",
]
