"""A fitted last-layer posterior: its draws, their directional summary, its record, and its control.

Draw s depends on (seed, s) only and is generated on the CPU in a fixed order, so that every batch, batch size and
device sees the same S networks. A draw is a *step* away from the mean weights, ΔW = σ∘ε, and embeddings move by
δ = ΔW h + Δb; keeping the step apart from the mean keeps its relative accuracy (see `_summary`).

The record of a posterior:

    prior_share             share of the last layer's weights whose prior precision is above their curvature
    mean_resultant_length   |mean_s u_s|, averaged over training images: 1 = the draws agree, 0 = they are everywhere

If the prior is above the curvature of every weight, the posterior is isotropic noise of the weights,
dW ~ N(0, I / delta). This moves an embedding by |h| / |z| of its length, a share that depends on norms only and says
nothing about the training pairs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.uncertainty._base import DirectionalBatch, Posterior, polar
from probmetric.uncertainty._summary import Classifier, Sampled, unit_deviation
from probmetric.uncertainty.laplace.curvature import augment, augmented_weight

log = logging.getLogger(__name__)

MOSTLY_PRIOR = 0.5
SCATTERED = 0.5

_ROWS = 8192


@dataclass(frozen=True)
class Sampler:
    """Draws of the last layer, seen through the embeddings: steps σ∘ε or, in a Kronecker eigenbasis, Q(σ∘ε)Vᵀ.

    Attributes:
        head: the layer.
        std: σ = 1/√(relu(h) + δ) of its weights and, as the last column, biases (Z, D'), in the basis if there is one.
        bases: Q (Z, Z) and V (D', D'), or None.
    """

    head: nn.Linear
    std: Tensor
    bases: tuple[Tensor, Tensor] | None = None

    def moves(self, features: Tensor, samples: int, seed: int) -> Iterator[Tensor]:
        """Yield moves (N, Z) of the embeddings of `features` (N, D), one per draw; draw s depends on (seed, s) only."""
        generator = torch.Generator().manual_seed(seed)
        inputs = self._inputs(features)
        for _ in range(samples):
            move = inputs @ (self._noise(generator) * self.std).T
            yield move if self.bases is None else move @ self.bases[0].T

    def variance(self, features: Tensor) -> Tensor:
        """Return the variance (N, Z) of the moves, in closed form."""
        variance = self._inputs(features).square() @ self.std.square().T
        return variance if self.bases is None else variance @ self.bases[0].square().T

    def _inputs(self, features: Tensor) -> Tensor:
        inputs = augment(features, self.head)
        return inputs if self.bases is None else inputs @ self.bases[1]

    def _noise(self, generator: torch.Generator) -> Tensor:
        """Return standard normal noise (Z, D'), in the coordinate basis weights before biases."""
        shape, apart = self.std.shape, self.bases is None and self.head.bias is not None
        sizes = [shape[1] - 1, 1] if apart else [shape[1]]
        noise = [torch.randn(shape[0], size, generator=generator) for size in sizes]
        return (torch.cat(noise, dim=1) if apart else noise[0]).to(self.std)


def stored_sampler(head: nn.Linear, posterior: Posterior) -> Sampler:
    """Return the sampler of a posterior's tensors, on the head's device; an error if they belong to another layer."""
    curvature, expected = posterior["weight_curvature"], augmented_weight(head)
    if curvature.shape != expected.shape:
        raise ValueError(
            f"the posterior's curvature has shape {tuple(curvature.shape)}, the encoder's last layer with its bias "
            f"{tuple(expected.shape)}; fit a posterior for this encoder."
        )
    std = (curvature.to(expected).clamp_min(0) + float(posterior["prior_precision"])).rsqrt()
    if "input_basis" not in posterior:
        return Sampler(head, std)
    return Sampler(head, std, (posterior["output_basis"].to(expected), posterior["input_basis"].to(expected)))


def summarise_moves(
    head: nn.Linear, features: Tensor, posterior: Posterior, options: Sampled, seed: int, classify: Classifier | None
) -> DirectionalBatch:
    """Summarise draws of the last layer on features (N, D); `classify` reads raw embeddings.

    Rows are taken in large blocks that repeat the same draws: memory beyond the result is bounded, and drawing costs
    little beside the products of a block.
    """
    sampler = stored_sampler(head, posterior)

    def block(rows: Tensor) -> DirectionalBatch:
        embeddings = F.linear(rows, head.weight, head.bias)
        moves = sampler.moves(rows, options.samples, seed)
        draws = ((unit_deviation(embeddings, move), embeddings + move) for move in moves)
        result = options.summarise(polar(embeddings)[0], draws, classify)
        square = embeddings.square().sum(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        result.variance = sampler.variance(rows) / square
        return result

    return DirectionalBatch.concatenate([block(rows) for rows in features.split(_ROWS)])


def record(head: nn.Linear, posterior: Posterior, features: Tensor | None, *, samples: int, seed: int) -> Posterior:
    """Return `prior_share` and, of features (N, D), `mean_resultant_length`; warn where they are bad."""
    precision = float(posterior["prior_precision"])
    share = (posterior["weight_curvature"] < precision).double().mean().float()
    if share > MOSTLY_PRIOR:
        log.warning(
            f"the prior (precision {precision:.3g}) is above the curvature in {float(share):.0%} of the last layer's "
            "weights: the posterior is mostly isotropic noise. Compare it with noise: isotropic, or lower "
            "prior_precision."
        )
    if features is None:
        return {"prior_share": share}
    embeddings = F.linear(features, head.weight, head.bias)
    moves = stored_sampler(head, posterior).moves(features, samples, seed)
    total = sum((F.normalize(embeddings + move, dim=1) for move in moves), torch.zeros_like(embeddings))
    length = (total / samples).norm(dim=1).mean().cpu()
    if length < SCATTERED:
        log.warning(
            f"the draws' mean resultant length is {float(length):.2f}: they scatter over the sphere, and their mean "
            "direction is mostly chance. Raise prior_precision, or use prior: validation."
        )
    return {"prior_share": share, "mean_resultant_length": length}


def flattened(posterior: Posterior) -> Posterior:
    """Return the control posterior: no curvature, and a prior precision that keeps the weights' mean variance."""
    precision, curvature = posterior["prior_precision"], posterior["weight_curvature"]
    variance = (curvature.double().clamp_min(0) + precision).reciprocal().mean()
    return posterior | {"weight_curvature": torch.zeros_like(curvature), "prior_precision": variance.reciprocal()}
