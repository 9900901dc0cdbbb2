"""A fitted last-layer posterior: its draws, their directional summary, what it says about itself, and its control.

Draw s is a function of (seed, s) only and is generated on the CPU in a fixed order, so that every batch, batch
size and device sees the same S networks. A draw is a *step* away from the mean weights, ΔW = σ∘ε, and embeddings
move by δ = ΔW h + Δb; keeping the step apart from the mean keeps its relative accuracy (see `_summary`).

What is recorded of it:

    prior_share             share of the last layer's weights whose prior precision is above their curvature
    mean_resultant_length   |mean_s u_s|, averaged over training images: 1 = the draws agree, 0 = they are everywhere

Where the prior is above the curvature everywhere the posterior is isotropic noise of the weights, dW ~ N(0, I / delta),
which moves an embedding by |h| / |z| of its length: a function of the norms, of which the training pairs know nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.uncertainty._base import DirectionalBatch, Posterior
from probmetric.uncertainty._summary import Classifier, DirectionalSummary, Predictive, Score, unit_deviation
from probmetric.uncertainty.laplace.curvature import augment, augmented_weight

log = logging.getLogger(__name__)

MOSTLY_PRIOR = 0.5
SCATTERED = 0.5

_CURVATURES = ("weight_curvature", "bias_curvature")
_ROWS = 8192


class Sampler(Protocol):
    """Draws of the last layer, seen through the embeddings."""

    def moves(self, features: Tensor, samples: int, seed: int) -> Iterator[Tensor]:
        """Yield moves (N, Z) of the embeddings of `features` (N, D), one per draw; draw s depends on (seed, s) only."""
        ...

    def variance(self, features: Tensor) -> Tensor:
        """Return the variance (N, Z) of the moves, in closed form."""
        ...


class DiagonalSampler:
    """Independent Gaussian steps with standard deviations 1/√(relu(h) + δ)."""

    def __init__(self, weight_curvature: Tensor, bias_curvature: Tensor | None, prior_precision: float) -> None:
        self.weight_std = standard_deviation(weight_curvature, prior_precision)
        self.bias_std = None if bias_curvature is None else standard_deviation(bias_curvature, prior_precision)

    def steps(self, samples: int, seed: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """`samples` steps (ΔW (Z, D), Δb (Z,) or None)."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(samples):
            weight = noise_like(self.weight_std, generator).mul_(self.weight_std)
            bias = None if self.bias_std is None else noise_like(self.bias_std, generator).mul_(self.bias_std)
            yield weight, bias

    def moves(self, features: Tensor, samples: int, seed: int) -> Iterator[Tensor]:
        """Return moves (N, Z) of the embeddings of `features` (N, D), one per draw."""
        return (F.linear(features, weight, bias) for weight, bias in self.steps(samples, seed))

    def variance(self, features: Tensor) -> Tensor:
        """Return the variance (N, Z) of the moves: sum over d of h_d^2 var(W_zd), and the bias's."""
        bias = None if self.bias_std is None else self.bias_std.square()
        return F.linear(features.square(), self.weight_std.square(), bias)


class KroneckerSampler:
    """Steps Q(σ∘ε)Vᵀ, with σ = 1/√(relu(h) + δ) and h (Z, D') the curvature in the basis."""

    def __init__(
        self, curvature: Tensor, output_basis: Tensor, input_basis: Tensor, prior_precision: float, has_bias: bool
    ) -> None:
        self.std = standard_deviation(curvature, prior_precision)
        self.output_basis, self.input_basis, self.has_bias = output_basis, input_basis, has_bias

    def moves(self, features: Tensor, samples: int, seed: int) -> Iterator[Tensor]:
        """Return moves (N, Z) of the embeddings of `features` (N, D), one per draw."""
        generator = torch.Generator().manual_seed(seed)
        rotated = augment(features, self.has_bias) @ self.input_basis
        for _ in range(samples):
            step = noise_like(self.std, generator).mul_(self.std)
            yield (rotated @ step.T) @ self.output_basis.T

    def variance(self, features: Tensor) -> Tensor:
        """Return the variance (N, Z) of the moves: sum over k of Q_zk^2 sum over j of (Vh)_j^2 sigma_kj^2."""
        rotated = augment(features, self.has_bias) @ self.input_basis
        return (rotated.square() @ self.std.square().T) @ self.output_basis.square().T


def noise_like(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard normal noise of `like`'s shape, drawn in float32 on the generator's (CPU) device."""
    return torch.randn(like.shape, generator=generator).to(device=like.device, dtype=like.dtype)


def standard_deviation(curvature: Tensor, prior_precision: float) -> Tensor:
    """(relu(h) + δ)^(−1/2)."""
    return (curvature.clamp_min(0) + prior_precision).rsqrt()


@dataclass(frozen=True)
class Drawing:
    """How many draws of a posterior are summarised, from which seed, by which score, and whether they are kept."""

    samples: int
    seed: int
    score: Score
    keep: bool


def summarise(
    head: nn.Linear, features: Tensor, sampler: Sampler, draws: Drawing, classify: Classifier | None = None
) -> DirectionalBatch:
    """Summarise draws of the last layer on features (N, D); `classify` reads raw embeddings.

    Rows are taken in large blocks that repeat the same draws: memory beyond the result is bounded, and drawing costs
    little beside the products of a block.
    """

    def block(rows: Tensor) -> DirectionalBatch:
        embeddings = F.linear(rows, head.weight, head.bias)
        summary = DirectionalSummary(F.normalize(embeddings, dim=1), score=draws.score, keep_samples=draws.keep)
        predictive = Predictive(classify)
        for move in sampler.moves(rows, draws.samples, draws.seed):
            summary.add(unit_deviation(embeddings, move))
            predictive.add(embeddings + move)
        result = summary.result()
        result.probabilities = predictive.result()
        square = embeddings.square().sum(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        result.variance = sampler.variance(rows) / square
        return result

    return DirectionalBatch.concatenate([block(rows) for rows in features.split(_ROWS)])


def stored_sampler(head: nn.Linear, posterior: Posterior) -> Sampler:
    """Return the sampler of a posterior's tensors, on the head's device; an error if they belong to another layer."""
    weight = augmented_weight(head) if "input_basis" in posterior else head.weight
    curvature = posterior["weight_curvature"]
    if curvature.shape != weight.shape or (head.bias is None and "bias_curvature" in posterior):
        raise ValueError(
            f"the posterior's curvature has shape {tuple(curvature.shape)}, the encoder's last layer "
            f"{tuple(weight.shape)}; fit a posterior for this encoder."
        )
    stored = {name: tensor.to(weight) for name, tensor in posterior.items() if tensor.is_floating_point()}
    precision = float(posterior["prior_precision"])
    if "input_basis" in stored:
        bases = stored["output_basis"], stored["input_basis"]
        return KroneckerSampler(stored["weight_curvature"], *bases, precision, head.bias is not None)
    return DiagonalSampler(stored["weight_curvature"], stored.get("bias_curvature"), precision)


def record(head: nn.Linear, posterior: Posterior, features: Tensor | None, *, samples: int, seed: int) -> Posterior:
    """`prior_share` and, of features (N, D), `mean_resultant_length`; a warning is logged where they are bad."""
    precision = float(posterior["prior_precision"])
    share = float((_entries(posterior) < precision).double().mean())
    facts = {"prior_share": torch.tensor(share)}
    if features is not None:
        facts["mean_resultant_length"] = _mean_resultant_length(head, posterior, features, samples, seed)
    for text in _complaints(precision, facts):
        log.warning(text)
    return facts


def flattened(posterior: Posterior) -> Posterior:
    """Return the control: no curvature, and a prior precision that keeps the mean variance of the weights."""
    precision = posterior["prior_precision"]
    variance = (_entries(posterior).double().clamp_min(0) + precision).reciprocal().mean()
    blank = {name: torch.zeros_like(posterior[name]) for name in _CURVATURES if name in posterior}
    return posterior | blank | {"prior_precision": variance.reciprocal()}


def _entries(posterior: Posterior) -> Tensor:
    """Return the curvature of weights and biases in one row."""
    return torch.cat([posterior[name].flatten() for name in _CURVATURES if name in posterior])


def _mean_resultant_length(head: nn.Linear, posterior: Posterior, features: Tensor, samples: int, seed: int) -> Tensor:
    embeddings = F.linear(features, head.weight, head.bias)
    moves = stored_sampler(head, posterior).moves(features, samples, seed)
    total = sum((F.normalize(embeddings + move, dim=1) for move in moves), torch.zeros_like(embeddings))
    return (total / samples).norm(dim=1).mean().cpu()


def _complaints(precision: float, facts: Posterior) -> list[str]:
    """Return what is wrong with a posterior of this record."""
    share, length = float(facts["prior_share"]), float(facts.get("mean_resultant_length", 1.0))
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
