"""The non-isotropic von Mises-Fisher distribution (paper 000, eq. 4) with its exact normaliser.

With K = diag(kappa_1 .. kappa_M) > 0, tilde kappa = ||K mu|| and the cosine s(a, b):

    rho(x) = C_M(tilde kappa) D(K, x) exp(tilde kappa s(K x, K mu))

    "exact"   D = prod_m kappa_m / ||K x||^M      the Jacobian of x -> K x / ||K x||: rho integrates to 1, and is the
                                                  vMF of concentration k for K = k I
    "paper"   D = prod_m kappa_m / tilde kappa    the published heuristic; off by k^(M-1) already for K = k I
    "none"    D = 1

In the exact form y = K x / ||K x|| is vMF around K mu / ||K mu||, so a sample is a vMF draw mapped back by K^-1.
Concentrations are stored as logarithms, so they stay positive under every optimiser.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from ._rotational import unit_vector
from .normalizer import check_tensors, full_precision, log_normalizer_of_square
from .von_mises_fisher import VonMisesFisher

Normalizer = Literal["exact", "paper", "none"]
_above_zero = constraints.independent(constraints.greater_than(-math.inf), 1)  # a concentration, as its logarithm


class NonIsotropicVonMisesFisher(Distribution):
    """nivMF with `loc` (..., M), unit rows, and per-dimension `concentration` or `log_concentration` (..., M)."""

    arg_constraints = {"loc": unit_vector, "log_concentration": _above_zero}  # noqa: RUF012
    support = unit_vector

    def __init__(
        self,
        loc: Tensor,
        concentration: Tensor | None = None,
        normalizer: Normalizer = "exact",
        *,
        log_concentration: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if (concentration is None) == (log_concentration is None):
            raise ValueError("give either concentration or log_concentration, not both and not neither.")
        if normalizer not in get_args(Normalizer):
            raise ValueError(f"normalizer is {normalizer!r}; allowed: {', '.join(map(repr, get_args(Normalizer)))}.")
        check_tensors(
            loc=loc,
            **{"log_concentration": log_concentration} if concentration is None else {"concentration": concentration},
        )
        logs = concentration.log() if concentration is not None else log_concentration
        self.normalizer = normalizer
        self.loc, self.log_concentration = torch.broadcast_tensors(loc, logs)
        super().__init__(self.loc.shape[:-1], self.loc.shape[-1:], validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """Whether the density can be sampled: only with the exact normaliser."""
        return self.normalizer == "exact"

    @property
    def concentration(self) -> Tensor:
        """kappa_1 .. kappa_M, (..., M)."""
        return self.log_concentration.exp()

    @property
    def dim(self) -> int:
        """M."""
        return self.event_shape[0]

    def expand(self, batch_shape: Any, _instance: Any = None) -> NonIsotropicVonMisesFisher:
        """Return the same distribution with batch shape `batch_shape`."""
        shape = (*Size(batch_shape), self.dim)
        loc, logs = self.loc.expand(shape), self.log_concentration.expand(shape)
        return type(self)(loc, normalizer=self.normalizer, log_concentration=logs, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density (...) at unit vectors `value` (..., M)."""
        if self._validate_args:
            self._validate_sample(value)
        logs = full_precision(self.log_concentration, "log_concentration")
        concentration = logs.exp()
        stretched_loc, stretched = concentration * self.loc, concentration * value
        square = stretched_loc.square().sum(-1)
        length = torch.linalg.vector_norm(stretched, dim=-1)
        aligned = (stretched * stretched_loc).sum(-1) / length
        log_volume = {
            "exact": lambda: logs.sum(-1) - self.dim * length.log(),
            "paper": lambda: logs.sum(-1) - square.log() / 2,
            "none": lambda: torch.zeros_like(square),
        }[self.normalizer]()
        return log_normalizer_of_square(square, self.dim) + log_volume + aligned

    def rsample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Return samples (*sample_shape, ..., M) of the exact density with gradients to both parameters."""
        if self.normalizer != "exact":
            raise NotImplementedError(
                f"normalizer {self.normalizer!r} does not make a density that can be sampled; use 'exact'."
            )
        stretched = self.concentration * self.loc
        length = torch.linalg.vector_norm(stretched, dim=-1)
        image = VonMisesFisher(stretched / length.unsqueeze(-1), length, validate_args=False)
        draws = image.rsample(sample_shape, generator=generator)
        return torch.nn.functional.normalize(draws * (-self.log_concentration).exp(), dim=-1)

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Return samples (*sample_shape, ..., M) without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)
