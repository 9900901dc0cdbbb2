"""What a fitted posterior says about itself, and the control it must beat.

    prior_share             share of the last layer's weights whose prior precision is above their curvature
    mean_resultant_length   |mean_s u_s|, averaged over training images: 1 = the draws agree, 0 = they are everywhere

Where the prior is above the curvature everywhere the posterior is isotropic noise of the weights, dW ~ N(0, I / delta),
which moves an embedding by |h| / |z| of its length: a function of the norms, of which the training pairs know nothing.
"""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.uncertainty._base import Posterior
from probmetric.uncertainty.laplace._posterior import stored_sampler

log = logging.getLogger(__name__)

MOSTLY_PRIOR = 0.5
SCATTERED = 0.5

_CURVATURES = ("weight_curvature", "bias_curvature")


def record(head: nn.Linear, posterior: Posterior, features: Tensor | None, *, samples: int, seed: int) -> Posterior:
    """`prior_share` and, of features (N, D), `mean_resultant_length`; a warning is logged where they are bad."""
    precision = float(posterior["prior_precision"])
    share = float((_entries(posterior) < precision).double().mean())
    found = {"prior_share": torch.tensor(share)}
    if features is not None:
        found["mean_resultant_length"] = _mean_resultant_length(head, posterior, features, samples, seed)
    for text in _complaints(precision, found):
        log.warning(text)
    return found


def flattened(posterior: Posterior) -> Posterior:
    """The control: no curvature, and a prior precision that keeps the mean variance of the weights."""
    precision = posterior["prior_precision"]
    variance = (_entries(posterior).double().clamp_min(0) + precision).reciprocal().mean()
    blank = {name: torch.zeros_like(posterior[name]) for name in _CURVATURES if name in posterior}
    return posterior | blank | {"prior_precision": variance.reciprocal()}


def _entries(posterior: Posterior) -> Tensor:
    """Curvature of weights and biases in one row."""
    return torch.cat([posterior[name].flatten() for name in _CURVATURES if name in posterior])


def _mean_resultant_length(head: nn.Linear, posterior: Posterior, features: Tensor, samples: int, seed: int) -> Tensor:
    embeddings = F.linear(features, head.weight, head.bias)
    moves = stored_sampler(head, posterior).moves(features, samples, seed)
    total = sum((F.normalize(embeddings + move, dim=1) for move in moves), torch.zeros_like(embeddings))
    return (total / samples).norm(dim=1).mean().cpu()


def _complaints(precision: float, found: Posterior) -> list[str]:
    """What is wrong with a posterior of this record."""
    share, length = float(found["prior_share"]), float(found.get("mean_resultant_length", 1.0))
    complaints = []
    if share > MOSTLY_PRIOR:
        complaints.append(
            f"the prior (precision {precision:.3g}) is above the curvature in {share:.0%} of the last layer's weights: "
            "the posterior is mostly isotropic noise. Compare it with noise: isotropic, or lower prior_precision."
        )
    if length < SCATTERED:
        complaints.append(
            f"the draws' mean resultant length is {length:.2f}: they scatter over the sphere, and their mean direction "
            "is mostly chance. Raise prior_precision, or use prior: validation."
        )
    return complaints
