"""The vMF loss (Scott et al. 2021, eqs. 8 and 13): classification with distributions for images and classes.

An image is z ~ vMF(z~ / |z~|, |z~|) with z~ = alpha f(x), class j is w_j ~ vMF(w~_j / |w~_j|, |w~_j|), beta = exp(tau):

    L = mean_i { mean_s log sum_j C(kappa_j) / C(|w~_j + beta z_s|) - beta A(kappa_z) A(kappa_y) mu_z^T mu_y }

with s over `samples` draws of z. The expectation over the classes is taken inside the logarithm, which gives an upper
bound of eq. 7. With |w~_j + beta z|^2 = kappa_j^2 + beta^2 + 2 beta z^T w~_j it needs one matrix product. At test time

    p(y | x) = mean_s softmax_j(beta z_s^T w_j^s)

with fresh draws of z and w. Initialisation: A_M(kappa*) = `resultant` (lambda: 0.4, for retrieval 0.7) gives kappa*.
Weights are normal with E|w~_j| = kappa*, and alpha brings the network's mean |f(x)| to kappa*. alpha is a buffer, saved
with the loss.

Class weights are as long as their concentrations, tens to hundreds of times those of a linear classifier. Adam's steps
do not grow with this length, so at the base rate the weights hardly turn within a short run. `weight_lr_multiplier` 0
(default) takes the ratio of both standard deviations: a step of Adam then turns a class weight as far as a linear
classifier's. For `as_published`, 0 means 1; the paper's settings, which train with SGD, use 1 too.

    corrected      exact log C_M and A_M, the right sampler, kappa* from A_M exactly, alpha from mean norms
    as_published   the mean of two bounds for both, the released sampler, kappa* = lambda (M - 1) / (1 - lambda^2) and
                   alpha = kappa* / (sqrt(M) mean |f_im|): mean norms come out sqrt(pi / 2) too long. The released code
                   stores -tau and takes log(sum(exp)) where we use logsumexp, which changes neither value nor step.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from probmetric.directional.normalizer import log_normalizer_of_square, scaled_ratio_of_square
from probmetric.losses import register
from probmetric.losses._base import WeightedLoss, bounded, start_concentration, vmf_draws
from probmetric.losses._released_vmf import bounds_log_normalizer, bounds_scaled_ratio
from probmetric.registry import LearningRate, NotNegative, OpenShare, Positive, StepCount


@register
class VMF(WeightedLoss):
    """The vMF classification loss with learned inverse temperature `scale` (beta)."""

    least_dim = 2
    wants_warm_start = True
    alpha: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        samples: StepCount = 10,
        resultant: OpenShare = 0.4,
        scale: Positive = 16.0,
        learn_scale: bool = True,
        scale_lr: LearningRate = 0.001,
        weight_lr_multiplier: NotNegative = 0.0,
        fidelity: Literal["corrected", "as_published"] = "corrected",
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.samples, self.scale_lr, self.published = samples, scale_lr, fidelity == "as_published"
        released = resultant * (dim - 1) / (1 - resultant**2)
        self.target = released if self.published else start_concentration(resultant, dim)  # kappa*
        self.weight_lr_multiplier = weight_lr_multiplier or (1.0 if self.published else math.sqrt(3) * self.target)
        self.weight = nn.Parameter(self.target / math.sqrt(dim) * torch.randn(num_classes, dim))
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)), requires_grad=learn_scale)
        self.register_buffer("alpha", torch.tensor(1.0))

    @torch.no_grad()
    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Choose alpha from the network's outputs on the training set."""
        wide = embeddings.double()
        size = math.sqrt(self.dim) * wide.abs().mean() if self.published else wide.norm(dim=1).mean()
        if size > 0:
            self.alpha.fill_(float((self.target / size).clamp_max(torch.finfo(self.alpha.dtype).max)))

    def natural_parameters(self, embeddings: Tensor) -> Tensor:
        """Return alpha f(x) (B, M) of embeddings f(x) (B, M)."""
        return bounded(self.alpha * embeddings)

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the log-partition over draws of the image minus the expected own logit."""
        nu, beta = self.natural_parameters(embeddings), self.log_scale.exp()
        square_z, square_w = nu.square().sum(dim=1), self.weight.square().sum(dim=1)
        draws = self._draw(nu, square_z, generator)
        along = draws.flatten(0, 1)
        joint = torch.addmm(square_w + beta**2, along, (2 * beta * self.weight).T).clamp_min(0)  # |w~_j + beta z_s|^2
        log_c, ratio = bounds_log_normalizer, bounds_scaled_ratio
        if not self.published:
            log_c, ratio = functools.partial(log_normalizer_of_square, constant=False), scaled_ratio_of_square
        log_parts = log_c(square_w, self.dim) - log_c(joint, self.dim)
        partition = log_parts.logsumexp(dim=1).unflatten(0, draws.shape[:2]).mean(dim=0)
        agreement = (nu * self.weight[labels]).sum(dim=1)
        ratio_z, ratio_w = ratio(square_z, self.dim), ratio(square_w, self.dim)
        return (partition - beta * ratio_z * ratio_w[labels] * agreement).mean()

    def _draw(self, nu: Tensor, square: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return draws (S, rows, M) around the rows of `nu` (rows, M), whose squared norms are `square` (rows,)."""
        length = torch.where(square > 0, square.clamp_min(torch.finfo(square.dtype).tiny).sqrt(), 0.0)
        return vmf_draws(nu, length, self.samples, generator, published=self.published)

    @torch.no_grad()
    def probabilities(self, embeddings: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return class probabilities (B, C): the mean softmax over joint draws of images and classes."""
        with torch.autocast(embeddings.device.type, enabled=False):
            nu = self.natural_parameters(embeddings.to(self.weight.dtype))
            images = self._draw(nu, nu.square().sum(dim=1), generator)
            classes = self._draw(self.weight, self.weight.square().sum(dim=1), generator)
            logits = self.log_scale.exp() * images @ classes.transpose(1, 2)
            return logits.softmax(dim=-1).mean(dim=0)

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return class weights at a multiple of the base learning rate; log beta at `scale_lr`, without momentum."""
        scale = {"params": [self.log_scale], "lr": self.scale_lr, "weight_decay": 0.0}
        weights = {"params": [self.weight], "lr_multiplier": self.weight_lr_multiplier, "weight_decay": 0.0}
        return [weights, scale | {"momentum": 0.0, "nesterov": False}]

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Return the inverse temperature beta, alpha and the mean concentration of the classes."""
        lengths = torch.linalg.vector_norm(self.weight, dim=1)
        numbers = {"scale": self.log_scale.exp(), "alpha": self.alpha, "class_concentration": lengths.mean()}
        return {name: float(value) for name, value in numbers.items()}
