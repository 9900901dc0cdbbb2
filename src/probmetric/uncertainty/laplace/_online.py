"""Online Laplace for metric learning: Monte-Carlo EM over the last layer's weights.

Paper 003, equations 4, 5, 79 and 80. At every step weights θ_s = θ + σ∘ε, σ = (relu(H) + δ)^(−1/2), are drawn, the
gradient of the loss at θ_s is applied to θ, and the curvature is discounted:

    θ ← θ − λ mean_s ∇L(θ_s),    H ← m H + relu(mean_s h(θ_s))

with h the diagonal Gauss-Newton curvature of the batch. Symbols: m = `memory`, δ = `prior_precision`,
S = `train_samples`. Equation 4 is printed with +λ. The buffers H, like the weights, belong to the state dict, so a
resumed run continues exactly.

Difference to the authors' code: gradients flow through θ + σ∘ε instead of a swap of parameters; a batch without a
mined triplet, or with a curvature that is not finite, leaves H as it is (the code divides by zero and H stays NaN).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.losses import Loss
from probmetric.uncertainty._objective import Objective

Weights = tuple[Tensor, Tensor | None]
Curvature = Callable[[Tensor, Tensor | None, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None, int]]


class OnlineLaplaceObjective(Objective):
    """The run's loss in expectation over the last layer's posterior, which it maintains."""

    weight_curvature: Tensor
    bias_curvature: Tensor | None
    steps: Tensor

    def __init__(
        self,
        inner: Loss,
        head: nn.Linear,
        curvature: Curvature,
        *,
        memory: float,
        initial_curvature: float,
        scale: float,
        per_triplet: bool,
        prior_precision: float,
        train_samples: int,
    ) -> None:
        super().__init__(inner)
        self._curvature = curvature
        self.memory, self.scale, self.per_triplet = memory, scale, per_triplet
        self.prior_precision, self.train_samples = prior_precision, train_samples
        self.register_buffer("weight_curvature", torch.full_like(head.weight, initial_curvature, requires_grad=False))
        bias = None if head.bias is None else torch.full_like(head.bias, initial_curvature, requires_grad=False)
        self.register_buffer("bias_curvature", bias)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=head.weight.device))

    def from_features(self, features: Tensor, head: nn.Linear, labels: Tensor, *, generator: torch.Generator) -> Tensor:
        """Mean loss over the weight draws; in training mode, also one discounted curvature update."""
        draws = [self._draw(head, generator) for _ in range(self.train_samples)] or [(head.weight, head.bias)]
        embeddings = [F.linear(features, *draw) for draw in draws]
        losses = [self.inner(rows, labels, generator=generator) for rows in embeddings]
        if self.training:
            with torch.no_grad():
                seen = zip(draws, embeddings, strict=True)
                self._update([self._curvature(*draw, features.detach(), labels, rows.detach()) for draw, rows in seen])
        return torch.stack(losses).mean()

    def _draw(self, head: nn.Linear, generator: torch.Generator) -> Weights:
        def perturbed(mean: Tensor, curvature: Tensor) -> Tensor:
            noise = torch.randn(mean.shape, generator=generator, device=generator.device).to(mean)
            return mean + noise * (curvature.clamp_min(0) + self.prior_precision).rsqrt()

        bias = None if self.bias_curvature is None else perturbed(head.bias, self.bias_curvature)
        return perturbed(head.weight, self.weight_curvature), bias

    def _update(self, parts: list[tuple[Tensor, Tensor | None, int]]) -> None:
        """H ← m H + relu(mean of the draws' curvatures), skipping draws without a triplet."""
        used = [part for part in parts if part[2] > 0]
        if not used:
            return
        factors = [self.scale / (count if self.per_triplet else 1) / len(parts) for _, _, count in used]
        weight = sum(factor * part[0] for factor, part in zip(factors, used, strict=True))
        self._discount(self.weight_curvature, torch.as_tensor(weight))
        if self.bias_curvature is not None:
            bias = sum(factor * part[1] for factor, part in zip(factors, used, strict=True) if part[1] is not None)
            self._discount(self.bias_curvature, torch.as_tensor(bias))
        self.steps += 1

    def _discount(self, curvature: Tensor, update: Tensor) -> None:
        new = self.memory * curvature + update.clamp_min(0)
        curvature.copy_(torch.where(torch.isfinite(update.sum()), new, curvature))

    def diagnostics(self) -> dict[str, float]:
        """Numbers of the inner loss and the posterior's median standard deviation."""
        std = (self.weight_curvature.clamp_min(0) + self.prior_precision).rsqrt()
        return self.inner.diagnostics() | {"posterior_std_median": float(std.median())}

    def posterior(self) -> dict[str, Tensor]:
        """Curvature and prior precision, in the form the post-hoc approximation stores them."""
        tensors = {
            "weight_curvature": self.weight_curvature.detach().float().cpu().clone(),
            "prior_precision": torch.tensor(self.prior_precision, dtype=torch.float64),
        }
        if self.bias_curvature is not None:
            tensors["bias_curvature"] = self.bias_curvature.detach().float().cpu().clone()
        return tensors
