"""EL-nivMF (paper 000): the expected likelihood of an image's vMF under non-isotropic vMF proxies, d_EL-nivMF.

    L = -log softmax_c(log E_{z ~ vMF(mu_i, kappa_i)} rho_c(z)) + omega L_guidance        (eqs. 5-7, algorithm 1)

estimated with `samples` draws z_n for each image; rho_c is the nivMF of proxy c (eq. 4). `guidance_weight` omega > 0
adds any proxy loss on the same proxy directions (the paper: ProxyAnchor). The (images, samples, classes) log-densities
come from two matrix products over all draws at once, see `_nivmf`; above `_LARGEST` entries they are made in blocks of
images and made again in the backward pass, which bounds the memory.

    corrected      exact log C_M and normaliser; (1/N sum_n rho)^(1/t): the temperature outside the mean, eqs. 5-6
    as_published   quadratic log C, heuristic D, the released sampler, 1/N sum_n rho^(1/t) (algorithm 1), and draws that
                   are not stretched by K before the cosine: effectively an isotropic vMF around K mu plus log D
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from probmetric.directional import VonMisesFisher
from probmetric.directional.normalizer import log_normalizer_of_square
from probmetric.losses import REGISTRY, create_loss, register
from probmetric.losses._base import Loss, require, unit
from probmetric.losses._nivmf import nivmf_log_densities, nivmf_log_likelihoods
from probmetric.losses._released_vmf import quadratic_log_normalizer, released_samples
from probmetric.losses._sample_proxy import SampleProxyLoss
from probmetric.losses.sample_proxy import by_fidelity
from probmetric.registry import Count, NotNegative, Positive

_LARGEST = 1 << 24


@register
class ELNivMF(SampleProxyLoss):
    """Expected likelihood under non-isotropic proxies, with an optional guiding proxy loss."""

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        samples: Count = 5,
        guidance: Literal[
            "none", "proxy_anchor", "proxy_anchor_nca", "proxy_nca", "proxy_nca_pp", "soft_triple"
        ] = "none",
        guidance_weight: NotNegative = 1.0,
        normalizer: Literal["by_fidelity", "exact", "paper", "none"] = "by_fidelity",
        concentration: Positive = 18.0,
        temperature: Positive = 0.003,
        proxy_lr: Positive = 0.05,
        concentration_lr: Positive = 0.01,
        temperature_lr: Positive = 0.01,
        embedding_scale: float = 0.0,
        resultant: float = 0.7,
        prior_strength: float = 0.0,
        fidelity: Literal["corrected", "as_published"] = "corrected",
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            dim=dim,
            concentration=concentration,
            temperature=temperature,
            proxy_lr=proxy_lr,
            concentration_lr=concentration_lr,
            temperature_lr=temperature_lr,
            embedding_scale=embedding_scale,
            resultant=resultant,
            prior_strength=prior_strength,
            fidelity=fidelity,
            per_dimension=True,
        )
        require(samples >= 1, "samples", samples, "at least 1")
        require(guidance_weight >= 0, "guidance_weight", guidance_weight, "at least 0")
        self.samples, self.guidance_weight = samples, guidance_weight
        self.normalizer = by_fidelity(normalizer, self.published)
        self.guidance: Loss | None = None
        if guidance != "none" and guidance_weight > 0:
            self.guidance = self._guide(guidance, fidelity)

    def _guide(self, name: str, fidelity: str) -> Loss:
        """The guiding loss; where it has one proxy per class, its directions are ours."""
        given = {"fidelity": fidelity} if "fidelity" in REGISTRY.options(name) else {}
        loss = create_loss(name, num_classes=self.num_classes, dim=self.dim, **given)
        if loss.get_parameter("proxies").shape == self.proxies.shape:
            del loss.proxies
            loss.register_buffer("proxies", torch.empty(0), persistent=False)
        return loss

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Cross-entropy over the estimated log expected likelihoods, the prior and the guiding loss."""
        value = F.cross_entropy(self.similarities(embeddings, generator), labels) + self.prior()
        if self.guidance is None:
            return value
        own = "proxies" in dict(self.guidance.named_parameters())
        shared: dict[str, Tensor] = {} if own else {"proxies": self.proxies}
        return value + self.guidance_weight * functional_call(self.guidance, shared, (embeddings, labels))

    def similarities(self, embeddings: Tensor, generator: torch.Generator | None) -> Tensor:
        """Log E[rho_c] / t (B, C), up to a constant per row."""
        draws = self._draw(embeddings, generator)
        block = max(1, _LARGEST // (self.samples * self.num_classes))
        if draws.shape[1] <= block:
            return self._log_mean_density(draws)
        pieces = draws.split(block, dim=1)
        return torch.cat([checkpoint(self._log_mean_density, piece, use_reentrant=False) for piece in pieces])

    def _draw(self, embeddings: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draws (N, B, M) from the images' distributions."""
        nu = self.sample_parameters(embeddings)
        length = torch.linalg.vector_norm(nu, dim=1)
        if self.published:
            return released_samples(unit(nu), length, self.samples, generator)
        source = VonMisesFisher(unit(nu), length, validate_args=False)
        return source.rsample((self.samples,), generator=generator)

    def _log_mean_density(self, draws: Tensor) -> Tensor:
        logs = self.log_concentrations()
        if not self.published:
            return self.inverse_temperature() * nivmf_log_likelihoods(
                draws, self.proxies, logs, log_normalizer_of_square, self.normalizer
            )
        points = draws.flatten(0, 1)
        densities = nivmf_log_densities(
            points, self.proxies, logs, quadratic_log_normalizer, self.normalizer, stretch=False
        )
        by_draw = self.inverse_temperature() * densities.unflatten(0, draws.shape[:2])
        return by_draw.logsumexp(dim=0) - math.log(self.samples)

    def probabilities(self, embeddings: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Class probabilities (B, C): the softmax over the estimated expected likelihoods."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.similarities(embeddings.to(self.working_dtype(embeddings)), generator).softmax(dim=1)

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """The distribution parameters' groups and those of the guiding loss."""
        guiding = [] if self.guidance is None else self.guidance.optimizer_groups()
        trained = [group for group in guiding if any(isinstance(p, nn.Parameter) for p in group["params"])]
        return super().optimizer_groups() + trained
