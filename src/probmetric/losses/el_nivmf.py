"""EL-nivMF (paper 000): the expected likelihood of an image's vMF under non-isotropic vMF proxies, d_EL-nivMF.

    L = -log softmax_c(log E_{z ~ vMF(mu_i, kappa_i)} rho_c(z)) + omega L_guidance        (eqs. 5-7, algorithm 1)

The expectation is estimated with `samples` draws z_n for each image. rho_c is the non-isotropic vMF of proxy c (eq. 4).
`guidance_weight` omega weighs the proxy loss `guidance` on the same proxy directions (the paper: ProxyAnchor).
`corrected` measures the gradients of both terms at the images once, at the warm start, and counts omega in units of
their ratio: at omega = 1 both gradients start equally large at any temperature. `as_published` takes omega as it is.
`guide_scale` and `guide_margin` are options of the guiding loss; None keeps its default.

The (images, samples, classes) log-densities come from two matrix products over all draws at once, see `_nivmf`. Above
`_LARGEST` entries they are computed in blocks of images, and again in the backward pass, to save memory.

    corrected      exact log C_M and normaliser; (1/N sum_n rho)^(1/t): the temperature outside the mean, eqs. 5-6
    as_published   quadratic log C, heuristic D, the released sampler, 1/N sum_n rho^(1/t) (algorithm 1), and draws that
                   are not stretched by K before the cosine: effectively an isotropic vMF around K mu plus log D
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from probmetric.directional.normalizer import log_normalizer_of_square
from probmetric.losses import create_loss, register
from probmetric.losses._base import SCALED, WITH_MARGIN, Loss, options_of, vmf_draws
from probmetric.losses._nivmf import nivmf_log_likelihoods, unstretched_log_densities
from probmetric.losses._released_vmf import quadratic_log_normalizer
from probmetric.losses.sample_proxy import Released, SampleProxyLoss, by_fidelity, some_rows
from probmetric.registry import NotNegative, Positive, StepCount, When

RELEASED = Released(18.0, 0.2, 0.003, 0.002)

_LARGEST = 1 << 24
_STEP = 128


@register
class ELNivMF(SampleProxyLoss):
    """Expected likelihood under non-isotropic proxies, with an optional guiding proxy loss."""

    guidance_scale: Tensor

    def __init__(
        self,
        *,
        samples: StepCount = 5,
        guidance: Literal[
            "none", "proxy_anchor", "proxy_anchor_nca", "proxy_nca", "proxy_nca_pp", "soft_triple"
        ] = "none",
        guidance_weight: NotNegative = 1.0,
        guide_scale: Annotated[Positive | None, When(guidance=SCALED)] = None,
        guide_margin: Annotated[float | None, When(guidance=WITH_MARGIN)] = None,
        normalizer: Literal["by_fidelity", "exact", "paper", "none"] = "by_fidelity",
        concentration: Positive = 18.0,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.start(concentration, RELEASED, per_dimension=True)
        self.samples, self.guidance_weight = samples, guidance_weight
        self.normalizer = by_fidelity(normalizer, self.published)
        self.guidance: Loss | None = None
        if guidance != "none" and guidance_weight > 0:
            fidelity = "as_published" if self.published else "corrected"
            options = options_of(guidance, {"fidelity": fidelity, "scale": guide_scale, "margin": guide_margin})
            self.guidance = create_loss(guidance, num_classes=self.num_classes, dim=self.dim, **options)
            if self.guidance.get_parameter("proxies").shape == self.proxies.shape:  # one per class: ours
                del self.guidance.proxies
                self.guidance.register_buffer("proxies", torch.empty(0), persistent=False)
            self.register_buffer("guidance_scale", torch.tensor(1.0))

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the cross-entropy over the estimated log expected likelihoods, the prior and the guiding loss."""
        value = super().compute(embeddings, labels, generator)
        if self.guidance is None:
            return value
        return value + self.guidance_weight * self.guidance_scale * self._guide(embeddings, labels)

    def _guide(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the guiding loss, on this loss's proxies if the guiding loss has one proxy per class."""
        assert self.guidance is not None
        buffers = dict(self.guidance.named_buffers())
        shared: dict[str, Tensor] = {"proxies": self.proxies} if "proxies" in buffers else {}
        value: Tensor = functional_call(self.guidance, shared, (embeddings, labels))
        return value

    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Warm-start as usual; then weigh the guiding loss by the ratio of the two gradients at the images."""
        super().warm_start(embeddings, labels)
        if self.guidance is None or self.published:
            return
        rows, classes = some_rows(_STEP, embeddings, labels)
        with torch.enable_grad():
            rows = rows.detach().to(self.proxies).requires_grad_()
            generator = torch.Generator(rows.device).manual_seed(0)
            values = super().compute(rows, classes, generator), self._guide(rows, classes)
            likelihood, guide = (torch.autograd.grad(value, rows)[0].norm() for value in values)
        if likelihood > 0 and guide > 0:
            self.guidance_scale.copy_(likelihood / guide)

    def similarities(self, embeddings: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return log E[rho_c] / t (B, C), up to a constant per row."""
        draws = self._draw(embeddings, generator)
        block = max(1, _LARGEST // (self.samples * self.num_classes))
        if draws.shape[1] <= block:
            return self._log_mean_density(draws)
        pieces = draws.split(block, dim=1)
        return torch.cat([checkpoint(self._log_mean_density, piece, use_reentrant=False) for piece in pieces])

    def _draw(self, embeddings: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return draws (N, B, M) from the images' distributions."""
        nu = self.natural_parameters(embeddings)
        length = torch.linalg.vector_norm(nu, dim=1)
        return vmf_draws(nu, length, self.samples, generator, published=self.published)

    def _log_mean_density(self, draws: Tensor) -> Tensor:
        logs = self.log_concentrations()
        if not self.published:
            return self.inverse_temperature() * nivmf_log_likelihoods(
                draws, self.proxies, logs, log_normalizer_of_square, self.normalizer
            )
        points = draws.flatten(0, 1)
        densities = unstretched_log_densities(points, self.proxies, logs, quadratic_log_normalizer, self.normalizer)
        by_draw = self.inverse_temperature() * densities.unflatten(0, draws.shape[:2])
        return by_draw.logsumexp(dim=0) - math.log(self.samples)

    def probabilities(self, embeddings: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return class probabilities (B, C): the softmax over the estimated expected likelihoods."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.similarities(embeddings.to(self.working_dtype(embeddings)), generator).softmax(dim=1)

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return the distribution parameters' groups and those of the guiding loss."""
        guiding = [] if self.guidance is None else self.guidance.optimizer_groups()
        trained = [group for group in guiding if any(isinstance(p, nn.Parameter) for p in group["params"])]
        return super().optimizer_groups() + trained
