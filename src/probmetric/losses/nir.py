"""NIR, non-isotropy regularisation of a proxy loss (Roth et al. 2022, eqs. 8-11).

Given its proxy rho_y, a conditional flow maps the unit embedding psi of class y to a residual
zeta = tau^-1(psi | rho_y). Then

    NLL_i = |zeta_i|^2 / 2 - log|det d zeta_i / d psi_i|        L = f(NLL) + omega L_PDML(psi, proxies)

with f = `function`, omega = `pdml_weight` and L_PDML = `base`. Mended misprints: eq. 10 lacks the 1/2 of a unit normal,
and eqs. 8-10 write the Jacobian at tau^-1(psi), not psi.

    corrected      f is applied to the batch mean (eq. 11); NLL is divided by the dimension (`nll_norm="dim"`)
    as_published   f is applied per sample, then averaged; NLL is not divided; L_PDML as released

Embeddings lie on a sphere, where a density of the surrounding space is unbounded. If NLL is not divided, the gradient
of exp(NLL) falls below 1e-6 of L_PDML's within an epoch, and NIR has no effect. The diagnostics report the ratio of the
two terms' gradient norms at the embeddings, `nir_gradient_ratio`; if it is near zero, the run shows no effect of NIR.

Options for the paper's ablations:

    table 4    `function`, `temperature` (f(NLL / t)), `detach_proxies`, `negative_pairs`, `pdml_weight` = 0, `blocks`,
               `width`, `condition`
    table 5    `self_regularisation`: L_PDML, at the same omega, of one synthetic sample psi_s = tau(zeta | rho_y),
               zeta ~ N(0, I), per image

Negative pairs add mean f(-NLL) over one random other class per image; the paper gives no formula. For an argument above
20, exp is continued by its tangent. The text names 8 blocks; released code, and the default here, has 5 with
sub-networks of 8 linear layers. `proxies_per_class` is an option of SoftTriple, whose softly assigned centre is the
condition; other base losses have one proxy per class. `scale` and `margin` are options of the base loss; None keeps its
default.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from probmetric.directional._rotational import drawn
from probmetric.losses import create_loss, register
from probmetric.losses._base import SCALED, WITH_MARGIN, Loss, options_of, unit
from probmetric.losses._flow import ConditionalFlow
from probmetric.losses.soft_triple import SoftTriple
from probmetric.registry import LearningRate, NotNegative, Positive, Range, StepCount, When

LARGEST_EXPONENT = 20.0
SUMMED = ("nir_nll", "nir_term", "nir_gradient", "pdml_gradient")


@register
class NIR(Loss):
    """Non-isotropy regularisation on top of the proxy loss `base`."""

    has_proxies = True
    least_dim = 2  # a coupling block splits the coordinates in two
    sums: Tensor
    counts: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        base: Literal["proxy_anchor", "proxy_anchor_nca", "proxy_nca", "soft_triple"] = "proxy_anchor",
        proxies_per_class: Annotated[StepCount, When(base="soft_triple")] = 10,
        scale: Annotated[Positive | None, When(base=SCALED)] = None,
        margin: Annotated[float | None, When(base=WITH_MARGIN)] = None,
        pdml_weight: NotNegative = 0.0075,
        proxy_lr: LearningRate = 0.04,
        flow_lr: LearningRate = 0.0005,
        nll_norm: Literal["by_fidelity", "dim", "none"] = "by_fidelity",
        function: Literal["exp", "softplus"] = "exp",
        temperature: Positive = 1.0,
        detach_proxies: bool = False,
        negative_pairs: bool = False,
        self_regularisation: Literal["none", "generate", "reverse_match", "generate_and_match"] = "none",
        blocks: Annotated[int, Range(low=1, high=100)] = 5,
        width: StepCount = 128,
        depth: Annotated[int, Range(low=2, high=100)] = 8,
        condition: Literal["dense", "start", "mid", "end"] = "dense",
        fidelity: Literal["corrected", "as_published"] = "corrected",
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        options = {"fidelity": fidelity, "proxies_per_class": proxies_per_class, "scale": scale, "margin": margin}
        self.base = create_loss(base, num_classes=num_classes, dim=dim, proxy_lr=proxy_lr, **options_of(base, options))
        self.flow = ConditionalFlow(dim, blocks=blocks, width=width, depth=depth, condition=condition)
        self.per_sample = fidelity == "as_published"
        divide = nll_norm == "dim" or (nll_norm == "by_fidelity" and not self.per_sample)
        self.divisor = float(dim) if divide else 1.0
        self.pdml_weight, self.flow_lr, self.function, self.temperature = pdml_weight, flow_lr, function, temperature
        self.detach_proxies, self.negative_pairs = detach_proxies, negative_pairs
        self.self_regularisation = self_regularisation
        self.register_buffer("sums", torch.zeros(len(SUMMED)), persistent=False)  # of the epoch so far
        self.register_buffer("counts", torch.tensor([-1, 0]), persistent=False)  # the epoch, its steps so far

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return f(NLL), the weighted proxy loss, and the ablations' extra terms."""
        regularised, proxied = embeddings.view_as(embeddings), embeddings.view_as(embeddings)
        nll = self.nll(regularised, labels)
        regulariser = self._rescale(nll)
        if self.negative_pairs and self.num_classes > 1:
            shift = torch.randint(1, self.num_classes, labels.shape, generator=generator, device=labels.device)
            regulariser = regulariser + self._rescale(-self.nll(regularised, (labels + shift) % self.num_classes))
        self._record(regularised, proxied, nll, regulariser)
        total = regulariser
        if self.pdml_weight > 0:
            total = total + self.pdml_weight * self.base(proxied, labels)
        if self.self_regularisation != "none":
            total = total + self.pdml_weight * self._synthetic(embeddings, labels, generator)
        return total

    def class_proxies(self) -> tuple[Tensor, Tensor] | None:
        """Return proxies of the base loss."""
        return self.base.class_proxies()

    def class_vectors(self) -> tuple[Tensor, Tensor] | None:
        """Return proxies of the base loss."""
        return self.base.class_vectors()

    def nll(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the negative log-density (B,) of `embeddings` (B, M) given `labels` (B,), up to a constant."""
        residual, log_det = self.flow(unit(embeddings), self.proxy_of(embeddings, labels, self.detach_proxies))
        return (0.5 * residual.square().sum(dim=1) - log_det) / self.divisor

    def proxy_of(self, embeddings: Tensor, labels: Tensor, detach: bool) -> Tensor:
        """Return the unit proxy (B, M) that conditions each image."""
        if isinstance(self.base, SoftTriple):
            proxy = self.base.assigned_centre(embeddings, labels)
        else:
            proxy = unit(self.base.proxies[labels])  # type: ignore[index]
        return proxy.detach() if detach else proxy

    def _rescale(self, nll: Tensor) -> Tensor:
        """Return f of the mean of `nll` (B,), or as published the mean of f."""
        exponent = nll / self.temperature if self.per_sample else nll.mean() / self.temperature
        if self.function == "softplus":
            return F.softplus(exponent).mean()
        bounded = exponent.clamp_max(LARGEST_EXPONENT).exp()
        tangent = math.exp(LARGEST_EXPONENT) * (exponent - LARGEST_EXPONENT).clamp_min(0.0)
        return (bounded + tangent).mean()

    def _synthetic(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the proxy loss of samples drawn from the flow; it trains the proxies, the flow or both."""
        matching = self.self_regularisation == "reverse_match"
        residual = drawn(torch.randn, embeddings.shape, embeddings, generator)
        proxy = self.proxy_of(embeddings.detach(), labels, matching)
        samples = unit(self.flow.inverse(residual, proxy))
        if self.self_regularisation == "generate":
            samples = samples.detach()
        if not matching:
            value: Tensor = self.base(samples, labels)
            return value
        frozen = {name: parameter.detach() for name, parameter in self.base.named_parameters()}
        matched: Tensor = torch.func.functional_call(self.base, frozen, (samples, labels))
        return matched

    def _record(self, regularised: Tensor, proxied: Tensor, nll: Tensor, regulariser: Tensor) -> None:
        """Add this step's numbers to the epoch's sums; gradient norms follow in the backward pass."""
        self.counts[1] += 1
        self._add("nir_nll", nll.detach().mean())
        self._add("nir_term", regulariser.detach())
        if regularised.requires_grad:
            regularised.register_hook(lambda gradient: self._add("nir_gradient", gradient.norm()))
            proxied.register_hook(lambda gradient: self._add("pdml_gradient", gradient.norm()))

    def _add(self, name: str, value: Tensor) -> None:
        self.sums[SUMMED.index(name)] += value

    def set_epoch(self, epoch: int) -> None:
        """Reset the epoch means, unless `epoch` is the one in progress."""
        self.base.set_epoch(epoch)
        if epoch != int(self.counts[0]):
            self.sums.zero_()
            self.counts.copy_(torch.tensor([epoch, 0]))

    def diagnostics(self) -> dict[str, float]:
        """Return epoch means of the NLL (per dimension where it is divided), of f, and the ratio of gradient norms."""
        steps = int(self.counts[1])
        if not steps:
            return {}
        nll, term, regularised, proxied = self.sums.tolist()
        ratio = {"nir_gradient_ratio": regularised / proxied} if proxied > 0 else {}
        return {"nir_nll": nll / steps, "nir_term": term / steps} | ratio

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return the proxy loss's groups and the flow at its own learning rate."""
        flow = {"params": list(self.flow.parameters()), "lr": self.flow_lr, "weight_decay": 0.0}
        return [*self.base.optimizer_groups(), flow]
