"""The softmax over sample-proxy distances that paper 000 compares (appendix A).

    L = mean_i -log [ exp(-d(z_i, p_{y_i}) / t) / sum_c exp(-d(z_i, p_c) / t) ]

(Eqs. 1, 2 and 6 print L without the minus.) An embedding z is a vMF with direction z / |z| and concentration
kappa_z = embedding_scale |z|. A proxy has a concentration kappa_p and a direction, that of its row (the row's norm only
sets how fast it turns). t and kappa_p are learned.

    temperature        0 (default): `corrected` measures t once, at the warm start, so that the logits of an image
                       have a standard deviation of `START_SPREAD` over the classes (t is 1 until then). `as_published`
                       takes the release's constant, which fits the release's logits only: with the exact normalisers
                       t = 0.003 spreads the logits so far that the network learns nothing (docs/findings/losses.md).
    embedding_scale    the released code multiplies the embedding layer's weights at initialisation. 0 (default)
                       measures the embeddings' mean norm once, at the warm start, and scales it to the concentration
                       at which A_M is `resultant`.
    prior_strength     across-class prior on the concentrations, the extension the paper asks for: log kappa_c is drawn
                       around its mean over the classes, log kappa_c ~ N(mean, 1 / prior_strength). This adds
                       prior_strength / 2 times the mean squared deviation to the loss. 0: no prior.
    corrected          log t and log kappa_p are the parameters; exact vMF normalisers
    as_published       t and kappa_p are the parameters (kappa_p at least 0.1); quadratic log C; see below

The learning rates of t and kappa_p are relative steps; `as_published` multiplies them by the initial values. A rate of
0 (default) means 0.01; with `as_published`, the released scripts' absolute rate (kappa_p: 0.5, `el_nivmf`: 0.2).

The analytic distances, with nu = kappa mu, the image's distribution zeta = vMF(nu_z) and the proxy's rho:

    distance   paper      d(z, p)                                                          proxy
    "cos"      d_Cos      -cos(mu_z, mu_p)                                                 a direction
    "l2"       d_L2       |nu_z - nu_p|^2                                                  a point
    "nivmf"    d_nivMF    -log rho(mu_z)                                                   non-isotropic vMF
    "b_vmf"    d_B-vMF    -log integral sqrt(rho zeta)                                     vMF
    "el_vmf"   d_EL-vMF   -log integral rho zeta                                           vMF
    "kl_vmf"   d_KL-vMF   KL(zeta | rho) = log C(kz) - log C(kp) + A_M(kz) (kz - kp cos)   vMF

(d_EL-nivMF has no closed form, see loss `el_nivmf`.) `concentration` = 0 means the value in the paper's comparison
(figure 5). For a `corrected` "l2" it means the images' mean concentration at the start, because the paper's 200 was
tuned for other norms. `normalizer` is the factor D of "nivmf".

    corrected      exact log C_M; "kl_vmf" keeps A_M(kz), which eq. 39 drops; "nivmf" has its exact normaliser
    as_published   quadratic log C, under which "b_vmf" is a scaled "l2" and "el_vmf" a scaled dot product; "kl_vmf"
                   without A_M and with the released sign, which repels an image from its own proxy; "nivmf" with the
                   heuristic D and, like "kl_vmf", the fit for M = 512 whatever M is. Only "b_vmf" and "el_vmf"
                   warm-start.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probmetric.directional import kl, product_kernel
from probmetric.directional.nonisotropic import Normalizer
from probmetric.directional.normalizer import log_normalizer_of_square
from probmetric.losses import register
from probmetric.losses._base import Loss, bounded, class_means, cosine_similarities, start_concentration, unit
from probmetric.losses._nivmf import nivmf_log_likelihoods
from probmetric.losses._released_vmf import quadratic_log_normalizer
from probmetric.registry import LearningRate, NotNegative, OpenShare, Range, When

SMALLEST_RELEASED_CONCENTRATION = 0.1
START_SPREAD = 1.0
STEP = 0.01  # of log t and of log kappa_p

_MEASURED = 1024

LearningRateOrZero = Annotated[float, Range(low=0, high=1e4)]
"""A learning rate; 0 means the default that the module's docstring names."""


class Released(NamedTuple):
    """Start values of a distance in the released scripts; both learning rates are absolute."""

    concentration: float
    concentration_lr: float
    temperature: float
    temperature_lr: float


RELEASED = {
    "cos": Released(10.0, 0.5, 1 / 256, 0.005),
    "l2": Released(200.0, 0.5, 1.0, 0.005),
    "nivmf": Released(10.0, 0.5, 1 / 32, 0.005),
    "b_vmf": Released(10.0, 0.5, 1.0, 0.005),
    "el_vmf": Released(10.0, 0.5, 1.0, 0.005),
    "kl_vmf": Released(10.0, 0.5, 1.0, 0.005),
}
ORDER = {"b_vmf": 0.5, "el_vmf": 1.0}
FIT_OF_512 = 512


class SampleProxyLoss(Loss):
    """Softmax over distances; a subclass calls `start` and gives `logits`."""

    has_proxies = True
    is_classifier = True
    least_dim = 2

    embedding_scale: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        temperature: NotNegative = 0.0,
        proxy_lr: LearningRate = 0.05,
        concentration_lr: LearningRateOrZero = 0.0,
        temperature_lr: LearningRateOrZero = 0.0,
        embedding_scale: NotNegative = 0.0,
        resultant: OpenShare = 0.7,
        prior_strength: NotNegative = 0.0,
        fidelity: Literal["corrected", "as_published"] = "corrected",
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.published, self.wants_warm_start = fidelity == "as_published", True
        self.resultant, self.prior_strength = resultant, prior_strength
        self.measure_scale, self.measure_temperature = embedding_scale == 0, temperature == 0 and not self.published
        self.rates = {"proxies": proxy_lr, "concentration": concentration_lr, "temperature": temperature_lr}
        self.first_temperature = temperature or (1.0 if self.measure_temperature else 0.0)
        self.register_buffer("embedding_scale", torch.tensor(embedding_scale or 1.0))

    def start(self, concentration: float, released: Released, *, per_dimension: bool) -> None:
        """Make the parameters.

        Args:
            concentration: start value of every kappa_p.
            released: the released scripts' start values, which replace a temperature or a rate of 0.
            per_dimension: whether a proxy has a concentration per dimension, (C, M), or one, (C,).
        """
        temperature = self.first_temperature or released.temperature
        for name, value, released_rate in (
            ("temperature", temperature, released.temperature_lr),
            ("concentration", concentration, released.concentration_lr),
        ):
            step = self.rates[name]
            self.rates[name] = (step * value or released_rate) if self.published else (step or STEP)
        self.initial = concentration
        shape = (self.num_classes, self.dim) if per_dimension else (self.num_classes,)
        stored = (lambda value: value) if self.published else math.log
        spread = concentration * math.sqrt(2 / (self.num_classes + self.dim))
        self.proxies = nn.Parameter(spread * torch.randn(self.num_classes, self.dim))
        self.concentration = nn.Parameter(torch.full(shape, stored(concentration)))
        self.temperature = nn.Parameter(torch.tensor(stored(temperature)))

    def concentrations(self) -> Tensor:
        """Return kappa_p, (C,) or (C, M)."""
        if self.published:
            return self.concentration.clamp_min(SMALLEST_RELEASED_CONCENTRATION)
        return self.concentration.exp()

    def log_concentrations(self) -> Tensor:
        """Return log kappa_p, (C,) or (C, M)."""
        return self.concentrations().log() if self.published else self.concentration

    def inverse_temperature(self) -> Tensor:
        """Return 1 / t."""
        return 1 / self.temperature if self.published else (-self.temperature).exp()

    def natural_parameters(self, embeddings: Tensor) -> Tensor:
        """Return nu_z = kappa_z mu_z (B, M) of embeddings (B, M)."""
        return bounded(self.embedding_scale * embeddings)

    def proxy_parameters(self) -> Tensor:
        """Return natural parameters nu_p = kappa_p mu_p (C, M) of isotropic proxies."""
        return self.concentrations().unsqueeze(1) * unit(self.proxies)

    def class_proxies(self) -> tuple[Tensor, Tensor]:
        """Return unit mean directions (C, M) of the proxies and their classes (C,)."""
        return unit(self.proxies), torch.arange(self.num_classes, device=self.proxies.device)

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return -d / t (B, C), up to a constant per row."""
        raise NotImplementedError

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the mean cross-entropy over the batch, and the prior."""
        return F.cross_entropy(self.similarities(embeddings, generator), labels) + self.prior()

    def similarities(self, embeddings: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return -d / t (B, C), up to a constant per row; `generator` drives the distances that are estimated."""
        return self.logits(embeddings)

    def prior(self) -> Tensor | float:
        """Return the negative log-density per entry of the concentrations under the prior; 0 without one."""
        if self.prior_strength == 0:
            return 0.0
        logs = self.log_concentrations()
        return 0.5 * self.prior_strength * (logs - logs.mean(dim=0)).square().mean()

    @torch.no_grad()
    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Point every proxy at its class mean; choose embedding scale and temperature if they are to be measured."""
        means, present = class_means(embeddings.to(self.proxies), labels, self.num_classes)
        self.proxies[present] = self.initial * means[present]
        norm = torch.linalg.vector_norm(embeddings, dim=1).double().mean()
        if self.measure_scale and norm > 0:
            self.embedding_scale.fill_(start_concentration(self.resultant, self.dim) / float(norm))
        if self.measure_temperature:
            self._measure_temperature(some_rows(_MEASURED, embeddings)[0])

    def _measure_temperature(self, embeddings: Tensor) -> None:
        """Set t so that the logits of an image have a standard deviation of `START_SPREAD` over the classes."""
        generator = torch.Generator(embeddings.device).manual_seed(0)
        spread = self.similarities(embeddings.to(self.proxies), generator).std(dim=1, correction=0).mean()
        if spread > 0:
            self.temperature.add_((spread / START_SPREAD).log())

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return directions, concentrations and temperature, each at its own absolute learning rate, undecayed."""
        return [{"params": [getattr(self, name)], "lr": rate, "weight_decay": 0.0} for name, rate in self.rates.items()]

    def diagnostics(self) -> dict[str, float]:
        """Return the temperature and mean proxy concentration."""
        with torch.no_grad():
            temperature, concentration = 1 / self.inverse_temperature(), self.concentrations().mean()
            return {"temperature": float(temperature), "proxy_concentration": float(concentration)}


def some_rows(count: int, *columns: Tensor) -> tuple[Tensor, ...]:
    """Return at most `count` random rows of tensors (N, ...): the same rows of each tensor, in every call."""
    order = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(0))[:count]
    return tuple(column[order.to(column.device)] for column in columns)


@register
class SampleProxy(SampleProxyLoss):
    """Softmax over one of the analytic distances between an image's and a proxy's distribution."""

    def __init__(
        self,
        *,
        distance: Literal["cos", "l2", "nivmf", "b_vmf", "el_vmf", "kl_vmf"] = "el_vmf",
        normalizer: Annotated[Literal["by_fidelity", "exact", "paper", "none"], When(distance="nivmf")] = "by_fidelity",
        concentration: NotNegative = 0.0,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        released = RELEASED[distance]
        if distance == "l2" and not self.published:
            released = released._replace(concentration=start_concentration(self.resultant, self.dim))
        self.start(concentration or released.concentration, released, per_dimension=distance == "nivmf")
        self.distance = distance
        self.normalizer = by_fidelity(normalizer, self.published)
        self.wants_warm_start = not self.published or distance in ORDER

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return -d / t (B, C), up to a constant per row."""
        nu_z = self.natural_parameters(embeddings)
        if self.distance == "cos":
            similarity = cosine_similarities(nu_z, self.proxies)
        elif self.distance == "nivmf":
            log_c = _quadratic_512 if self.published else log_normalizer_of_square
            points, logs = unit(nu_z).unsqueeze(0), self.log_concentrations()
            similarity = nivmf_log_likelihoods(points, self.proxies, logs, log_c, self.normalizer)
        elif self.distance == "l2":
            nu_p = self.proxy_parameters()
            similarity = 2 * nu_z @ nu_p.T - nu_p.square().sum(dim=1)
        else:
            similarity = self._similarity(nu_z, self.proxy_parameters())
        return self.inverse_temperature() * similarity

    def _similarity(self, nu_z: Tensor, nu_p: Tensor) -> Tensor:
        if not self.published:
            if self.distance == "kl_vmf":
                return -kl(nu_z, nu_p)
            return product_kernel(nu_z, nu_p, rho=ORDER[self.distance])
        square_z, square_p = nu_z.square().sum(dim=1, keepdim=True), nu_p.square().sum(dim=1)
        dot = nu_z @ nu_p.T
        if self.distance == "kl_vmf":
            length = square_z.clamp_min(1e-12).sqrt()
            return length - dot / length - _quadratic_512(square_p, self.dim)
        order = ORDER[self.distance]
        joint = order**2 * (square_z + square_p + 2 * dot).clamp_min(0)
        of_proxy = quadratic_log_normalizer(square_p, self.dim)
        return order * of_proxy - quadratic_log_normalizer(joint, self.dim)


def by_fidelity(normalizer: str, published: bool) -> Normalizer:
    """Return the factor D asked for, or the one that the fidelity implies."""
    if normalizer == "by_fidelity":
        return "paper" if published else "exact"
    return normalizer  # type: ignore[return-value]


def _quadratic_512(square: Tensor, dim: int) -> Tensor:
    return quadratic_log_normalizer(square, FIT_OF_512)
