"""The softmax over sample-proxy distances that paper 000 compares, shared by the seven losses `d_*` and `el_nivmf`.

    L = mean_i -log [ exp(-d(z_i, p_{y_i}) / t) / sum_c exp(-d(z_i, p_c) / t) ]

(eqs. 1, 2, 6 print it without the minus.) An embedding z is a vMF with direction z / |z| and concentration
kappa_z = embedding_scale |z|; a proxy has a direction (the row's, its norm only sets how fast it turns) and a
concentration kappa_p. t and kappa_p are learned.

    temperature        0 (default): `corrected` measures it once, at the warm start, so that the logits of an image
                       have a standard deviation of `START_SPREAD` over the classes (1 until then); `as_published`
                       takes the release's constant. Its constants belong to its own logits: under the exact
                       normalisers t = 0.003 makes logits so far apart that nothing is learned (docs/losses.md).
    embedding_scale    the released code multiplies the embedding layer's weights at initialisation. 0 (default)
                       measures the network once, at the warm start, and scales its mean norm to where A_M is
                       `resultant`.
    prior_strength     across-class prior on the concentrations, the extension the paper asks for: every log kappa is
                       drawn around its mean over the classes, log kappa_c ~ N(mean, 1 / prior_strength), which adds
                       prior_strength / 2 times the mean squared deviation to the loss. 0: none.
    corrected          log t and log kappa_p are the parameters; exact vMF normalisers
    as_published       t and kappa_p themselves are (kappa_p cut off at 0.1); quadratic log C; see each loss

The learning rates of t and kappa_p are relative steps: for the raw parameters they are multiplied by the initial value.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probmetric.directional import concentration_from_resultant
from probmetric.losses._base import Loss, unit
from probmetric.losses._proxies import class_means
from probmetric.registry import Range

SMALLEST_RELEASED_CONCENTRATION = 0.1
START_SPREAD = 1.0
TEMPERATURE_STEP = 0.01

_MEASURED = 1024

LearningRateOrZero = Annotated[float, Range(low=0, high=1e4)]
"""A learning rate; 0 takes that of the released scripts."""


class Released(NamedTuple):
    """Start values of a distance in the released scripts; the temperature's learning rate is absolute."""

    concentration: float
    temperature: float
    temperature_lr: float


class SampleProxyLoss(Loss):
    """Softmax over distances; subclasses give `logits`. `per_dimension` concentrations make (C, M), else (C,)."""

    has_proxies = True
    is_classifier = True
    least_dim = 2

    embedding_scale: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        dim: int,
        concentration: float,
        temperature: float,
        proxy_lr: float,
        concentration_lr: float,
        temperature_lr: float,
        embedding_scale: float,
        resultant: float,
        prior_strength: float,
        fidelity: str,
        released: Released,
        per_dimension: bool = False,
    ) -> None:
        super().__init__(num_classes=num_classes, dim=dim)
        self.published = fidelity == "as_published"
        self.measure_temperature = temperature == 0 and not self.published
        temperature = temperature or (1.0 if self.measure_temperature else released.temperature)
        temperature_lr = temperature_lr or (
            released.temperature_lr / temperature if self.published else TEMPERATURE_STEP
        )
        self.wants_warm_start = True
        self.initial, self.prior_strength, self.resultant = concentration, prior_strength, resultant
        self.rates = {"proxies": proxy_lr, "concentration": concentration_lr, "temperature": temperature_lr}
        self.measure_scale = embedding_scale == 0
        if self.published:
            self.rates["concentration"] *= concentration
            self.rates["temperature"] *= temperature
        shape = (num_classes, dim) if per_dimension else (num_classes,)
        stored = (lambda value: value) if self.published else math.log
        spread = concentration * math.sqrt(2 / (num_classes + dim))
        self.proxies = nn.Parameter(spread * torch.randn(num_classes, dim))
        self.concentration = nn.Parameter(torch.full(shape, stored(concentration)))
        self.temperature = nn.Parameter(torch.tensor(stored(temperature)))
        self.register_buffer("embedding_scale", torch.tensor(embedding_scale or 1.0))

    def concentrations(self) -> Tensor:
        """kappa_p, (C,) or (C, M)."""
        if self.published:
            return self.concentration.clamp_min(SMALLEST_RELEASED_CONCENTRATION)
        return self.concentration.exp()

    def log_concentrations(self) -> Tensor:
        """Log kappa_p, (C,) or (C, M)."""
        return self.concentrations().log() if self.published else self.concentration

    def inverse_temperature(self) -> Tensor:
        """1 / t."""
        return 1 / self.temperature if self.published else (-self.temperature).exp()

    def sample_parameters(self, embeddings: Tensor) -> Tensor:
        """Natural parameters nu_z = kappa_z mu_z (B, M)."""
        return self.embedding_scale * embeddings

    def proxy_parameters(self) -> Tensor:
        """Natural parameters nu_p = kappa_p mu_p (C, M) of isotropic proxies."""
        return self.concentrations().unsqueeze(1) * unit(self.proxies)

    def class_proxies(self) -> tuple[Tensor, Tensor]:
        """Unit mean directions (C, M) of the proxies and their classes (C,)."""
        return unit(self.proxies), torch.arange(self.num_classes, device=self.proxies.device)

    def logits(self, embeddings: Tensor) -> Tensor:
        """-d / t (B, C), up to a constant per row."""
        raise NotImplementedError

    def compute(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Mean cross-entropy over the batch, and the prior."""
        return F.cross_entropy(self.similarities(embeddings, generator), labels) + self.prior()

    def similarities(self, embeddings: Tensor, generator: torch.Generator | None) -> Tensor:
        """-d / t (B, C), up to a constant per row; `generator` drives the distances that are estimated."""
        return self.logits(embeddings)

    def prior(self) -> Tensor | float:
        """Negative log-density of the concentrations under the across-class prior, per entry, or 0 without one."""
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
        """Directions, concentrations and temperature, each with its own absolute learning rate, none decayed."""
        return [{"params": [getattr(self, name)], "lr": rate, "weight_decay": 0.0} for name, rate in self.rates.items()]

    def diagnostics(self) -> dict[str, float]:
        """Temperature and mean proxy concentration."""
        with torch.no_grad():
            found = {"temperature": float(1 / self.inverse_temperature())}
            return found | {"proxy_concentration": float(self.concentrations().mean())}


def start_concentration(resultant: float, dim: int) -> float:
    """The concentration kappa at which A_M(kappa) is `resultant`."""
    return float(concentration_from_resultant(torch.tensor(resultant, dtype=torch.float64), dim))


def some_rows(count: int, *columns: Tensor) -> tuple[Tensor, ...]:
    """At most `count` rows of tensors (N, ...), the same of each: random ones, always the same."""
    order = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(0))[:count]
    return tuple(column[order.to(column.device)] for column in columns)
