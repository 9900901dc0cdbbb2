"""Polynomials for log C_M and A_M: one cached fit per dimension, in plain numbers.

With N = M - 1, s = sqrt(kappa^2 + a^2) and q = a / s in (0, 1], the ratio A_M(kappa) = I_{M/2} / I_{M/2-1} is

    A_M(kappa) = kappa * F,    F = (1 + q^2 h(q)) / (N / 2 + s).

The factor 1 / (N / 2 + s) is the leading term of the uniform (Debye) expansion and carries the growth. The
remaining h is smooth on [0, 1] for a fixed M, so a short polynomial in x = 2 q - 1 reaches machine precision
for *every* kappa >= 0. The nearest singularities of h are the images of the zeros of I_{M/2-1} on the
imaginary axis; for small M a larger `a` moves them away from [0, 1]. Degrees of h needed: 2 (float32) and 8
(float64) for M = 512, 10 and 32 for M = 2.

    d log C_M / d kappa = -A_M          log C_M(kappa) = log C_M(0) - u + N/2 log(1 + u / (N/2 + a)) - G(q),
    u = s - a,                          G(q) = a * integral_q^1 h(p) / (1 + N p / (2 a)) dp
    q^2 g(q) = q d(q^2 h)/dq            gives the derivatives of F and A_M without cancellation

h is fitted to values from the downward recurrence F_M = 1 / (M + kappa^2 F_{M+2}). The recurrence is stable; it
starts at an order so high that the two-term uniform expansion is exact to rounding.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Polynomial, chebyshev

_NODES = 160
_RECURRENCE_STEPS = 1500
_MAX_DEGREE = 60
_DIM_WITHOUT_CENTRE = 4


class RatioSeries(NamedTuple):
    """Constants and polynomials (ascending powers of 1 / s - centre) for one dimension and precision."""

    half: float  # N / 2 = (M - 1) / 2
    shift: float  # a
    square: float  # a^2
    inverse: float  # 1 / (N / 2 + a)
    centre: float
    ratio: tuple[float, ...]  # a^2 h, so that 1 + q^2 h = 1 + ratio / s^2
    slope: tuple[float, ...]  # a^2 g
    decay: tuple[float, ...]  # -G
    level: tuple[float, ...]  # log C_M(0) - G


LARGEST_DIM = 2**31


def check_dim(dim: int) -> int:
    """Return `dim` if it is a possible dimension of the space around the sphere."""
    if isinstance(dim, bool) or not isinstance(dim, int) or not 2 <= dim <= LARGEST_DIM:
        raise ValueError(f"dim is {dim!r}; it is the embedding's dimension, an integer >= 2 (at most {LARGEST_DIM}).")
    return dim


@functools.lru_cache(maxsize=256)
def ratio_series(dim: int, single: bool) -> RatioSeries:
    """Fit the polynomials for dimension `dim`; `single` asks for float32 accuracy (shorter polynomials)."""
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
    centre = 0.0 if single and dim >= _DIM_WITHOUT_CENTRE else 0.5 / shift

    def powers(values: np.ndarray, weight: np.ndarray, tolerance: float) -> tuple[float, ...]:
        return _powers(_fit(x, values, weight, tolerance), shift, centre)

    first, *higher = powers(-decay, np.ones_like(q), 100 * tolerance if single else 10 * tolerance)
    return RatioSeries(
        half=half,
        shift=shift,
        square=shift**2,
        inverse=1 / (half + shift),
        centre=centre,
        ratio=powers(shift**2 * q**2 * h, q**2, shift**2 * tolerance),
        slope=powers(shift**2 * q * g, q, shift**2 * tolerance),
        decay=powers(-decay, np.ones_like(q), 10 * tolerance),
        level=(log_c0(dim) + first, *higher),
    )


def log_c0(dim: int) -> float:
    """Return log C_M(0), which is -log(area of the sphere)."""
    return math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)


def _shift(dim: int) -> float:
    if dim == 2:
        return 3.1
    return 2.0 + 0.6 * dim if dim < 24 else (dim - 1) / 2


def _correction(dim: int, shift: float, q: np.ndarray) -> np.ndarray:
    """Return q^2 h(q) = F (N / 2 + s) - 1 at the nodes `q` (K,)."""
    wide = q.astype(np.longdouble)
    s = shift / wide
    square = (s - shift) * (s + shift)
    half = np.longdouble((dim - 1) / 2)
    ratio = _scaled_ratio(dim, square)
    return np.asarray(ratio * (half + s) - 1, dtype=np.float64)


def _scaled_ratio(dim: int, square: np.ndarray) -> np.ndarray:
    """Return F = A_M(kappa) / kappa at `square` = kappa^2 (K,), by downward recurrence in the order."""
    top = dim + 2 * _RECURRENCE_STEPS
    steep = top - 1
    s = np.sqrt(square + np.longdouble(steep) ** 2 / 4)
    ratio = (1 - steep / (4 * s**2)) / (steep / 2 + s)
    for order in range(top - 2, dim - 1, -2):
        ratio = 1 / (order + square * ratio)
    return ratio


def _fit(x: np.ndarray, values: np.ndarray, weight: np.ndarray, tolerance: float) -> np.ndarray:
    """Fit the shortest Chebyshev series p with |weight * p(x) - values| <= tolerance at every node."""
    for degree in range(1, _MAX_DEGREE):
        basis = chebyshev.chebvander(x, degree) * weight[:, None]
        coefficients = np.linalg.lstsq(basis, values, rcond=None)[0]
        if np.abs(basis @ coefficients - values).max() <= tolerance:
            return coefficients
    raise ArithmeticError(f"no polynomial of degree < {_MAX_DEGREE} reaches {tolerance}; this is a defect, report it.")


def _powers(coefficients: np.ndarray, shift: float, centre: float) -> tuple[float, ...]:
    """Return coefficients in powers of 1 / s - `centre`, of the series in x = 2 a / s - 1."""
    argument = Polynomial([2 * shift * centre - 1, 2 * shift])
    return tuple(map(float, Polynomial(chebyshev.cheb2poly(coefficients))(argument).coef))
