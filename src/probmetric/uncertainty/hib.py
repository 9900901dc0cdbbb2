"""Hedged instance embedding (Oh et al. 2018), as compared in paper 003: encoder and variance are trained together.

An image is N(μ, diag σ²). K samples of each image, projected onto the sphere, give for a pair of images

    p(match) = mean over the K×K sample pairs of sigmoid(−softplus(a)·|z_i − z_j| + b)

and the loss is mean_pos(−log p) + mean_neg(−log(1 − p)) + β·KL(N(μ, σ²) ‖ N(0, I)), with
KL = ½Σ(σ² + μ² − 1 − log σ²). Symbols: a = `sharpness`, b = `offset` (learnt), β = `kl_weight` (1e-4 in the text and
for CIFAR10, otherwise 1e-6 in the authors' code), K = `train_samples`.
Both likelihood terms are computed in log space, log(1 − p) as the mean of sigmoid(−x).

`as_published` repeats the authors' code: |z_i − z_j|² in the sigmoid, the mean of log p over the sample pairs, μ of
length 1, and in place of the divergence −½Σ(log σ + (1 + μ²)/σ²), summed over the batch, which is unbounded below and
drives σ to 0. (Their 1e-6 on p, which gives NaN once p rounds to 1, is not repeated.)

The start differs as well. Published: σ = 1, a = 1, b = 0. In M dimensions this noise has length √M beside a mean of
length 1, and no distance on the sphere gives p above ½; small networks hardly leave this state. Corrected: σ is 0.3
times the root mean square of μ over the training images (`warm_start`), softplus(a) = 5 and b = 3. Then p = ½ at a
distance of 0.6, which lies between 0.4 (two samples of one image) and √2 (unrelated images).

HIB was made for two or three dimensions. In many dimensions noise only lengthens distances, and the objective prefers
noise on clear images (docs/findings/uncertainty.md, "HIB in many dimensions").
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.losses._base import pairs_of
from probmetric.registry import NotNegative, Range
from probmetric.uncertainty import register
from probmetric.uncertainty._base import Fitting, Objective, Posterior, evaluating, linear_head, polar
from probmetric.uncertainty._gaussian import GaussianHead, LogVarianceHead

if TYPE_CHECKING:
    from probmetric.losses import Loss
    from probmetric.models import Encoder

_EPS = 1e-6
_RELATIVE_STD = 0.3
_SHARPNESS, _OFFSET = 5.0, 3.0


class HIBObjective(Objective):
    """Soft contrastive loss between embedding distributions; the run's own loss is not used."""

    def __init__(self, inner: Loss, head: nn.Linear, settings: HIB) -> None:
        super().__init__(inner)
        self.settings, self.wants_warm_start = settings, not settings.published
        device = head.weight.device
        self.variance = LogVarianceHead(head.in_features, head.out_features).to(device)
        sharpness, offset = (1.0, 0.0) if settings.published else (math.log(math.expm1(_SHARPNESS)), _OFFSET)
        self.sharpness = nn.Parameter(torch.tensor(sharpness, device=device))
        self.offset = nn.Parameter(torch.tensor(offset, device=device))

    @torch.no_grad()
    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Start σ at a fixed share of the size of the embeddings (N, M)."""
        square = embeddings.square().mean().clamp_min(torch.finfo(embeddings.dtype).tiny)
        self.variance.shift.copy_((_RELATIVE_STD**2 * square).log())

    def from_features(self, features: Tensor, head: nn.Linear, labels: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the objective of a batch's features (B, D)."""
        mean = self.settings.locate(head(features))
        with evaluating(self.variance) if len(features) == 1 else nullcontext():  # one image has no statistics
            log_variance = self.variance(features)
        return self.of_gaussians(mean, log_variance, labels, generator=generator)

    def of_gaussians(self, mean: Tensor, log_variance: Tensor, labels: Tensor, *, generator: torch.Generator) -> Tensor:
        """Return the loss of means and log σ² (B, M): match and mismatch terms plus the weighted divergence."""
        shape = (self.settings.train_samples, *mean.shape)
        noise = torch.randn(shape, generator=generator, device=generator.device).to(mean)
        samples = F.normalize(mean + (0.5 * log_variance).exp() * noise, dim=-1)
        log_match, log_mismatch = self.log_probabilities(samples)
        positive, negative = pairs_of(labels)
        likelihood = _masked_mean(-log_match, positive) + _masked_mean(-log_mismatch, negative)
        divergence = self.divergence(mean, log_variance)
        total = divergence.sum() if self.settings.published else divergence.mean()
        return likelihood + self.settings.kl_weight * total

    def probabilities(self, embeddings: Tensor, *, generator: torch.Generator | None = None) -> Tensor | None:
        """Return None: the run's own loss is not trained, so its classifier has learnt nothing."""
        return None

    def logits(self, embeddings: Tensor) -> Tensor | None:
        """Return None: the run's own loss is not trained."""
        return None

    def log_probabilities(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(match) and log(1 − p(match)), each (B, B), of samples (K, B, M)."""
        count, size, dim = samples.shape
        flat = samples.reshape(count * size, dim)
        distance = torch.cdist(flat, flat).reshape(count, size, count, size).permute(1, 3, 0, 2).flatten(2)
        if self.settings.published:
            logit = self.offset - F.softplus(self.sharpness) * distance.square()
            return F.logsigmoid(logit).mean(2), F.logsigmoid(-logit).mean(2)
        logit = self.offset - F.softplus(self.sharpness) * distance
        log_count = 2 * math.log(count)
        match = torch.logsumexp(F.logsigmoid(logit), dim=2) - log_count
        return match, torch.logsumexp(F.logsigmoid(-logit), dim=2) - log_count

    def divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """Return the divergence (B,) from the standard normal, of means and log variances (B, M)."""
        variance = log_variance.exp()
        if self.settings.published:
            terms = -((variance.sqrt() + _EPS).log() + (1 + mean.square()) / (variance + _EPS))
        else:
            terms = variance + mean.square() - 1 - log_variance
        return 0.5 * terms.sum(-1)


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum().clamp_min(1)


@register
class HIB(GaussianHead):
    """Variance learnt together with the encoder by the soft contrastive objective."""

    trains_encoder, replaces_loss = True, True

    def __init__(
        self,
        *,
        train_samples: Annotated[int, Range(low=1, high=100)] = 8,
        kl_weight: NotNegative = 1e-4,
        fidelity: Literal["corrected", "as_published"] = "corrected",
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.train_samples, self.kl_weight, self.published = train_samples, kl_weight, fidelity == "as_published"

    def locate(self, embeddings: Tensor) -> Tensor:
        """Return μ: the raw embedding, or as published its direction."""
        return polar(embeddings)[0] if self.published else embeddings

    def objective(self, encoder: Encoder, loss: Loss, *, num_images: int) -> HIBObjective:
        """Return the soft contrastive objective; `loss` is not trained."""
        return HIBObjective(loss, linear_head(encoder), self)

    def fitted(self, fitting: Fitting) -> Posterior:
        """Return the variance head that training learnt; reads no image."""
        if not isinstance(fitting.loss, HIBObjective):
            raise ValueError(
                "hib needs an encoder trained with its objective; "
                f"this one was trained with {type(fitting.loss).__name__}. Set `objective: hib` for the method, "
                "or use `pfe` on a trained encoder."
            )
        return fitting.loss.variance.tensors()
