"""Polynomials behind log C_M and A_M: one fit per dimension, cached, in plain numbers.

With N = M - 1, s = sqrt(kappa^2 + a^2) and q = a / s in (0, 1], the ratio A_M(kappa) = I_{M/2} / I_{M/2-1} is

    A_M(kappa) = kappa * F,    F = (1 + q^2 h(q)) / (N / 2 + s).

The factor 1 / (N / 2 + s) is the leading term of the uniform (Debye) expansion and carries the growth; what
is left, h, is smooth on [0, 1] for a fixed M, so a short polynomial in x = 2 q - 1 reaches machine precision
for *every* kappa >= 0. The nearest singularities of h are the images of the zeros of I_{M/2-1} on the
imaginary axis; for small M a larger `a` moves them away from [0, 1]. Degrees of h needed: 2 (float32) and 8
(float64) for M = 512, 10 and 32 for M = 2.

    d log C_M / d kappa = -A_M          log C_M(kappa) = log C_M(0) - u + N/2 log(1 + u / (N/2 + a)) - G(q),
    u = s - a,                          G(q) = a * integral_q^1 h(p) / (1 + N p / (2 a)) dp
    q^2 g(q) = q d(q^2 h)/dq            gives the derivatives of F and A_M without cancellation

The values h is fitted to come from the downward recurrence F_M = 1 / (M + kappa^2 F_{M+2}), which is stable,
started at an order so high that the two-term uniform expansion is exact to rounding.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev

_NODES = 160
_RECURRENCE_STEPS = 1500
_MAX_DEGREE = 60


class RatioSeries(NamedTuple):
    """Constants and polynomials (ascending powers of 1 / s - 1 / (2 a)) for one dimension and precision."""

    half: float  # N / 2 = (M - 1) / 2
    shift: float  # a
    log_c0: float  # log C_M(0)
    ratio: tuple[float, ...]  # a^2 h, so that 1 + q^2 h = 1 + ratio / s^2
    slope: tuple[float, ...]  # a^2 g
    decay: tuple[float, ...]  # G


def check_dim(dim: int) -> int:
    """Return `dim` if it is a possible dimension of the space around the sphere."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 2:
        raise ValueError(f"dim is {dim!r}; it is the embedding's dimension, an integer >= 2.")
    return dim


@functools.lru_cache(maxsize=256)
def ratio_series(dim: int, single: bool) -> RatioSeries:
    """Fit the polynomials for dimension `dim`; `single` asks for float32 accuracy (shorter polynomials)."""
    check_dim(dim)
    half = (dim - 1) / 2
    shift = _shift(dim)
    x = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)
    q = (x + 1) / 2
    master = _fit(x, _correction(dim, shift, q), q**2, 1e-14)
    h = chebyshev.chebval(x, master)
    g = 2 * h + (x + 1) * chebyshev.chebval(x, chebyshev.chebder(master))
    integral = chebyshev.chebint(chebyshev.chebfit(x, h / (1 + half * q / shift), _NODES // 2)) * (shift / 2)
    decay = chebyshev.chebval(1.0, integral) - chebyshev.chebval(x, integral)
    tolerance = 1e-7 if single else 1e-14
    return RatioSeries(
        half=half,
        shift=shift,
        log_c0=math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi),
        ratio=_powers(shift**2 * _fit(x, q**2 * h, q**2, tolerance), shift),
        slope=_powers(shift**2 * _fit(x, q * g, q, tolerance), shift),
        decay=_powers(_fit(x, decay, np.ones_like(q), 10 * tolerance), shift),
    )


def _shift(dim: int) -> float:
    return 2.0 + 0.6 * dim if dim < 24 else (dim - 1) / 2


def _correction(dim: int, shift: float, q: np.ndarray) -> np.ndarray:
    """q^2 h(q) = F (N / 2 + s) - 1 at the nodes `q` (K,)."""
    wide = q.astype(np.longdouble)
    s = shift / wide
    square = (s - shift) * (s + shift)
    half = np.longdouble((dim - 1) / 2)
    ratio = _scaled_ratio(dim, square)
    return np.asarray(ratio * (half + s) - 1, dtype=np.float64)


def _scaled_ratio(dim: int, square: np.ndarray) -> np.ndarray:
    """F = A_M(kappa) / kappa at `square` = kappa^2 (K,), by downward recurrence in the order."""
    top = dim + 2 * _RECURRENCE_STEPS
    steep = top - 1
    s = np.sqrt(square + np.longdouble(steep) ** 2 / 4)
    ratio = (1 - steep / (4 * s**2)) / (steep / 2 + s)
    for order in range(top - 2, dim - 1, -2):
        ratio = 1 / (order + square * ratio)
    return ratio


def _fit(x: np.ndarray, values: np.ndarray, weight: np.ndarray, tolerance: float) -> np.ndarray:
    """Chebyshev coefficients of the shortest series p with |weight * p(x) - values| <= tolerance at every node."""
    for degree in range(1, _MAX_DEGREE):
        basis = chebyshev.chebvander(x, degree) * weight[:, None]
        coefficients = np.linalg.lstsq(basis, values, rcond=None)[0]
        if np.abs(basis @ coefficients - values).max() <= tolerance:
            return coefficients
    raise ArithmeticError(f"no polynomial of degree < {_MAX_DEGREE} reaches {tolerance}; this is a defect, report it.")


def _powers(coefficients: np.ndarray, shift: float) -> tuple[float, ...]:
    """Coefficients in powers of x / (2 a) = 1 / s - 1 / (2 a)."""
    return tuple(float(c) * (2 * shift) ** k for k, c in enumerate(chebyshev.cheb2poly(coefficients)))
