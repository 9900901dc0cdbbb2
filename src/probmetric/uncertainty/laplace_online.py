"""Online LAM: the last-layer posterior is learnt while training (paper 003, section 3, Monte-Carlo EM).

At every step weights θ_s = θ + σ∘ε, σ = (relu(H) + δ)^(−1/2), are drawn, the
gradient of the loss at θ_s is applied to θ, and the curvature is discounted:

    θ ← θ − λ mean_s ∇L(θ_s),    H ← m H + relu(mean_s h(θ_s))

with h the diagonal Gauss-Newton curvature of the batch. Symbols: m = `memory`, δ = `prior_precision`,
S = `train_samples`. Equation 4 is printed with +λ. The buffers H, like the weights, belong to the state dict, so a
resumed run continues exactly.

Difference to the authors' code: gradients flow through θ + σ∘ε instead of a swap of parameters; a batch without a
mined triplet, or with a curvature that is not finite, leaves H as it is (the code divides by zero and H stays NaN).

As an *objective* it shapes training (equations 4, 5, 79 and 80); as an *uncertainty* it takes the
posterior the objective learnt and samples it exactly as the post-hoc approximation does. Defaults that depend on the
number N of training images are written −1: `initial_curvature` is then N and `scale` N², the authors' values.
`normalize="triplets"` divides a batch's curvature by its number of triplets (authors); "none" sums, which is the
scale of the post-hoc approximation. `memory` is m: the text's memory factor α is 1 − m.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.registry import CountOrZero, Fraction, Range
from probmetric.uncertainty import register
from probmetric.uncertainty._base import Fitting, Objective, Posterior, evaluating, linear_head
from probmetric.uncertainty.laplace.model import RECORDED, LastLayerPosterior

if TYPE_CHECKING:
    from probmetric.losses import Loss
    from probmetric.models import Encoder

Weights = tuple[Tensor, Tensor | None]
Curvature = Callable[[Tensor, Tensor | None, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None, int]]


@dataclass(frozen=True)
class Accumulation:
    """How the curvature is accumulated and drawn from while training.

    Attributes:
        curvature: that of a batch, of weight, bias, features, labels and embeddings, with its number of terms.
        memory: m.
        initial: the curvature before the first step.
        scale: factor of every batch's curvature.
        per_triplet: whether a batch's curvature is divided by its number of terms.
        prior_precision: delta.
        draws: S; 0 trains at the mean.
    """

    curvature: Curvature
    memory: float
    initial: float
    scale: float
    per_triplet: bool
    prior_precision: float
    draws: int


class OnlineLaplaceObjective(Objective):
    """The run's loss in expectation over the last layer's posterior, which it maintains."""

    weight_curvature: Tensor
    bias_curvature: Tensor | None
    steps: Tensor

    def __init__(self, inner: Loss, head: nn.Linear, rule: Accumulation) -> None:
        super().__init__(inner)
        self.rule = rule
        self.register_buffer("weight_curvature", torch.full_like(head.weight, rule.initial, requires_grad=False))
        bias = None if head.bias is None else torch.full_like(head.bias, rule.initial, requires_grad=False)
        self.register_buffer("bias_curvature", bias)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=head.weight.device))

    def from_features(self, features: Tensor, head: nn.Linear, labels: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the mean loss over the weight draws; in training mode, also one discounted curvature update."""
        draws = [self._draw(head, generator) for _ in range(self.rule.draws)] or [(head.weight, head.bias)]
        embeddings = [F.linear(features, *draw) for draw in draws]
        losses = [self.inner(rows, labels, generator=generator) for rows in embeddings]
        if self.training:
            with torch.no_grad():
                seen = zip(draws, embeddings, strict=True)
                self._update(
                    [self.rule.curvature(*draw, features.detach(), labels, rows.detach()) for draw, rows in seen]
                )
        return torch.stack(losses).mean()

    def _draw(self, head: nn.Linear, generator: torch.Generator) -> Weights:
        def perturbed(mean: Tensor, curvature: Tensor) -> Tensor:
            noise = torch.randn(mean.shape, generator=generator, device=generator.device).to(mean)
            return mean + noise * (curvature.clamp_min(0) + self.rule.prior_precision).rsqrt()

        bias = None if self.bias_curvature is None else perturbed(head.bias, self.bias_curvature)
        return perturbed(head.weight, self.weight_curvature), bias

    def _update(self, parts: list[tuple[Tensor, Tensor | None, int]]) -> None:
        """H ← m H + relu(mean of the draws' curvatures), skipping draws without a triplet."""
        used = [part for part in parts if part[2] > 0]
        if not used:
            return
        factors = [self.rule.scale / (count if self.rule.per_triplet else 1) / len(parts) for _, _, count in used]
        weight = sum(factor * part[0] for factor, part in zip(factors, used, strict=True))
        self._discount(self.weight_curvature, torch.as_tensor(weight))
        if self.bias_curvature is not None:
            bias = sum(factor * part[1] for factor, part in zip(factors, used, strict=True) if part[1] is not None)
            self._discount(self.bias_curvature, torch.as_tensor(bias))
        self.steps += 1

    def _discount(self, curvature: Tensor, update: Tensor) -> None:
        new = self.rule.memory * curvature + update.clamp_min(0)
        curvature.copy_(torch.where(torch.isfinite(update.sum()), new, curvature))

    def diagnostics(self) -> dict[str, float]:
        """Return numbers of the inner loss and the posterior's median standard deviation."""
        std = (self.weight_curvature.clamp_min(0) + self.rule.prior_precision).rsqrt()
        return self.inner.diagnostics() | {"posterior_std_median": float(std.median())}

    def posterior(self) -> dict[str, Tensor]:
        """Return the curvature and prior precision, in the form the post-hoc approximation stores them."""
        tensors = {
            "weight_curvature": self.weight_curvature.detach().float().cpu().clone(),
            "prior_precision": torch.tensor(self.rule.prior_precision, dtype=torch.float64),
        }
        if self.bias_curvature is not None:
            tensors["bias_curvature"] = self.bias_curvature.detach().float().cpu().clone()
        return tensors


@register
class OnlineLaplace(LastLayerPosterior):
    """Posterior learnt during training; sampled like the post-hoc one."""

    trains_encoder = True

    def __init__(
        self,
        *,
        memory: Fraction = 0.999,
        initial_curvature: Annotated[float, Range(low=-1)] = -1.0,
        scale: Annotated[float, Range(low=-1)] = -1.0,
        normalize: Literal["triplets", "none"] = "triplets",
        prior: Literal["fixed", "validation"] = "fixed",
        train_samples: CountOrZero = 1,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.memory, self.initial_curvature, self.scale = memory, initial_curvature, scale
        self.normalize, self.prior, self.train_samples = normalize, prior, train_samples

    def objective(self, encoder: Encoder, loss: Loss, *, num_images: int) -> OnlineLaplaceObjective:
        """Return the run's loss in expectation over the posterior of the last layer."""
        rule = Accumulation(
            self.rule.curvature,
            memory=self.memory,
            initial=self.initial_curvature if self.initial_curvature >= 0 else float(num_images),
            scale=self.scale if self.scale >= 0 else float(num_images) ** 2,
            per_triplet=self.normalize == "triplets" and self.rule.pairs == "mined",
            prior_precision=self.prior_precision,
            draws=self.train_samples,
        )
        return OnlineLaplaceObjective(loss, linear_head(encoder), rule)

    def fitted(self, fitting: Fitting) -> Posterior:
        """Return the posterior that training learnt, with its record; `batches` serve the record and may be empty.

        `prior="validation"` chooses the precision of the finished posterior, not the one that training drew with.
        """
        if not isinstance(fitting.loss, OnlineLaplaceObjective):
            raise ValueError(
                "laplace_online needs an encoder trained with its objective; this one was trained with "
                f"{type(fitting.loss).__name__}. Set `objective: laplace_online` for the method, "
                "or use `laplace` (post-hoc)."
            )
        self._require_validation(fitting)
        head, kept = linear_head(fitting.encoder), list[Tensor]()
        with evaluating(fitting.encoder):
            for _ in self._seen(fitting, kept):
                if sum(map(len, kept)) >= RECORDED:
                    break
            return self._finished(fitting, head, fitting.loss.posterior(), kept)
