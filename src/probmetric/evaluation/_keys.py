"""Similarity keys that are exact numbers, so that ranks do not depend on block size, threads or device.

A floating-point dot product depends on the order of its additions, hence on the block shape, the number of
threads and the library; near-ties then change places. Here each coordinate is first read to `BITS` binary
places of a unit that is a power of two at least as large as every row norm. Products of two such numbers are
multiples of 2^-(2 BITS), every partial sum is bounded by the product of the norms (Cauchy-Schwarz), and so all
sums fit the 53 bits of a float64: any order of additions, fused or not, gives the same, exact result. Reading
to 26 places moves a coordinate of a unit vector by at most 7.5e-9, less than float32 arithmetic does.

Larger key = nearer. Keys are compared only within a query, so terms that depend on the query alone are dropped:
    cosine     x.y                                         (rows are unit vectors)
    euclidean  x.y - |y|^2 / 2                             (= (|x|^2 - |x-y|^2) / 2)
    poincare   -|x-y|^2 / (1 - |y|^2)                      (arcosh is increasing)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
DistanceFunction = Callable[[NDArray[np.float32], NDArray[np.float32]], Any]
Distance = Literal["cosine", "euclidean", "poincare"] | DistanceFunction
NAMES = ("cosine", "euclidean", "poincare")
UNIT_ROUNDOFF = 2.0**-24
BITS = {"cosine": 26, "euclidean": 25, "poincare": 25}


def unit_exponent(distance: str, *largest_norms: float) -> int:
    """Exponent e such that 2^e bounds every row norm (0 where rows are unit vectors or lie in the unit ball).

    A margin of 1e-7 keeps norms that are exact powers of two away from the step, where rounding would decide.
    """
    if distance != "euclidean":
        return 0
    largest = max(largest_norms)
    return int(np.ceil(np.log2(largest * (1 + 1e-7)))) if largest > 0 else 0


def on_grid(rows: NDArray[np.float32], distance: str, exponent: int) -> Doubles:
    """`rows` (B,M) divided by 2^exponent and rounded to BITS binary places, float64."""
    steps = 2.0 ** BITS[distance]
    scaled = np.multiply(rows, 2.0**-exponent * steps, dtype=np.float64)
    return np.rint(scaled, out=scaled) / steps


def float32_error(dim: int, distance: str) -> float:
    """Bound on |float32 key - exact key|, rows of norm at most 1 + 1e-4 in units of 2^exponent, any summation order.

    gamma_M (Higham 2002, section 3.1) for the product, 2^-BITS sqrt(M) for the reading to BITS places.
    """
    gamma = dim * UNIT_ROUNDOFF / (1 - dim * UNIT_ROUNDOFF)
    reading = 2.0 ** -BITS[distance] * dim**0.5
    shifting = 8 * UNIT_ROUNDOFF if distance == "euclidean" else 0.0
    return 1.01 * (gamma + reading + shifting)


def squared_norms(grid: Doubles) -> Doubles:
    """Exact squared norms (B,) of rows on the grid."""
    return np.einsum("ij,ij->i", grid, grid)


def keys(queries: Doubles, gallery: Doubles, distance: str, gallery_norms: Doubles | None = None) -> Doubles:
    """Keys (B,N) of `queries` (B,M) against `gallery` (N,M), both from `on_grid`."""
    products = queries @ gallery.T
    if distance == "cosine":
        return products
    norms = squared_norms(gallery) if gallery_norms is None else gallery_norms
    if distance == "euclidean":
        products -= norms / 2
        return products
    products *= -2.0
    products += squared_norms(queries)[:, None]
    products += norms
    products /= norms - 1.0
    return products
