"""Online LAM: the last-layer posterior is learnt while training (paper 003, section 3, Monte-Carlo EM).

At every step weights θ_s = θ + σ∘ε, σ = (relu(H) + δ)^(−1/2), are drawn, the
gradient of the loss at θ_s is applied to θ, and the curvature is discounted:

    θ ← θ − λ mean_s ∇L(θ_s),    H ← m H + relu(mean_s h(θ_s))

with h the diagonal Gauss-Newton curvature of the batch. Symbols: m = `memory` (the text's memory factor α is 1 − m),
δ = `prior_precision`, S = `train_samples`. The paper prints equation 4 with +λ. The buffers H, like the weights, belong
to the state dict, so a resumed run continues exactly.

Differences to the authors' code: gradients flow through θ + σ∘ε instead of a swap of parameters. A batch without a
mined triplet, or with a curvature that is not finite, leaves H as it is (their code divides by zero and H stays NaN).
The 1e-6 that their code adds to the root in σ is left out. `memory` is that of their settings for small images; their
text has 0.9999, and their other settings 0.995 to 0.99999.

As an *objective* it shapes training (equations 4, 5, 79 and 80). As an *uncertainty* it samples the posterior that the
objective learnt, exactly as the post-hoc approximation does. A default of −1 depends on the number N of training
images: `initial_curvature` is then N and `scale` N², the authors' values. `normalize="triplets"` divides a batch's
curvature by its number of triplets, as the authors do; "none" sums, which is the scale of the post-hoc approximation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.registry import Fraction, Range
from probmetric.uncertainty import register
from probmetric.uncertainty._base import Fitting, Objective, Posterior, linear_head
from probmetric.uncertainty.laplace.curvature import Batch, augment, augmented_weight
from probmetric.uncertainty.laplace.model import LastLayerPosterior

if TYPE_CHECKING:
    from probmetric.losses import Loss
    from probmetric.models import Encoder


class OnlineLaplaceObjective(Objective):
    """The run's loss in expectation over the last layer's posterior, which this objective updates."""

    weight_curvature: Tensor
    steps: Tensor

    def __init__(self, inner: Loss, head: nn.Linear, settings: OnlineLaplace, num_images: int) -> None:
        super().__init__(inner)
        self.settings = settings
        initial = settings.initial_curvature if settings.initial_curvature >= 0 else float(num_images)
        self.scale = settings.scale if settings.scale >= 0 else float(num_images) ** 2
        curvature = torch.full_like(augmented_weight(head), initial, requires_grad=False)
        self.register_buffer("weight_curvature", curvature)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=head.weight.device))

    def from_features(self, features: Tensor, head: nn.Linear, labels: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the mean loss over the weight draws; in training mode, also one discounted curvature update."""
        inputs, weight = augment(features, head), augmented_weight(head)
        draws = [weight + self._step(head, generator) for _ in range(self.settings.train_samples)]
        embeddings = [F.linear(inputs, draw) for draw in draws] or [head(features)]
        losses = [self.inner(rows, labels, generator=generator) for rows in embeddings]
        if self.training:
            with torch.no_grad():
                rule = self.settings.rule
                self._update([rule.curvature(inputs.detach(), rows.detach(), labels) for rows in embeddings])
        return torch.stack(losses).mean()

    def _step(self, head: nn.Linear, generator: torch.Generator) -> Tensor:
        """Return σ∘ε (Z, D'), the biases drawn first."""
        sizes = [tuple(part.shape) for part in (head.bias, head.weight) if part is not None]
        noise = [torch.randn(size, generator=generator, device=generator.device) for size in sizes]
        whole = noise[-1] if head.bias is None else torch.cat([noise[-1], noise[0][:, None]], dim=1)
        return whole.to(self.weight_curvature) * self._std()

    def _std(self) -> Tensor:
        return (self.weight_curvature.clamp_min(0) + self.settings.prior_precision).rsqrt()

    def _update(self, parts: list[tuple[Tensor, int]]) -> None:
        """Update H ← m H + relu(mean of the draws' curvatures), skipping draws without a triplet."""
        per_triplet = self.settings.normalize == "triplets" and self.settings.rule.pairs == "mined"
        used = [self.scale / (count if per_triplet else 1) / len(parts) * part for part, count in parts if count > 0]
        if not used:
            return
        update = torch.stack(used).sum(0)
        new = self.settings.memory * self.weight_curvature + update.clamp_min(0)
        self.weight_curvature.copy_(torch.where(torch.isfinite(update.sum()), new, self.weight_curvature))
        self.steps += 1

    def diagnostics(self) -> dict[str, float]:
        """Return numbers of the inner loss and the posterior's median standard deviation."""
        return self.inner.diagnostics() | {"posterior_std_median": float(self._std().median())}


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
        train_samples: Annotated[int, Range(low=0, high=1024)] = 1,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.memory, self.initial_curvature, self.scale = memory, initial_curvature, scale
        self.normalize, self.prior, self.train_samples = normalize, prior, train_samples

    def objective(self, encoder: Encoder, loss: Loss, *, num_images: int) -> OnlineLaplaceObjective:
        """Return the run's loss in expectation over the posterior of the last layer."""
        return OnlineLaplaceObjective(loss, linear_head(encoder), self, num_images)

    def layer_curvature(self, fitting: Fitting, batches: Iterator[Batch]) -> Posterior:
        """Return the curvature that training learnt. Only the record reads batches; they may be empty.

        `prior="validation"` chooses the precision of the finished posterior; training drew with `prior_precision`.
        """
        if not isinstance(fitting.loss, OnlineLaplaceObjective):
            raise ValueError(
                "laplace_online needs an encoder trained with its objective; this one was trained with "
                f"{type(fitting.loss).__name__}. Set `objective: laplace_online` for the method, "
                "or use `laplace` (post-hoc)."
            )
        return {"weight_curvature": fitting.loss.weight_curvature.detach().float().cpu().clone()}
