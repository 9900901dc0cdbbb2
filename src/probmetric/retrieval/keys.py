"""Compute similarity keys that are the same numbers on every engine, so that ranks are the same too.

A floating-point dot product depends on the order of its additions, hence on the block shape, the number of threads and
the library; near-ties then change places. So each coordinate is first rounded to `BITS` binary places of a power of two
not below its row's norm (1 for unit rows and rows in the unit ball). Products of two such numbers are whole multiples
of one unit, and the product of the norms bounds every partial sum (Cauchy-Schwarz), so all sums fit the 53 bits of a
float64. Any order of additions, fused or not, then gives the same, exact dot product. The operations after it are one
fixed sequence of IEEE operations. Rounding to 26 places moves a coordinate of a unit vector by at most 7.5e-9, less
than float32 arithmetic does.

Larger key = nearer. Keys are compared only within a query, so terms that depend on the query alone are dropped:
    cosine     x.y                                         (rows are unit vectors)
    euclidean  x.y - |y|^2 / 2                             (= (|x|^2 - |x-y|^2) / 2)
    poincare   -|x-y|^2 / (1 - |y|^2)                      (arcosh is increasing)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from probmetric.metrics.arrays import Doubles, Floats, products, row_norms

DistanceFunction = Callable[[Floats, Floats], Any]
Distance = Literal["cosine", "euclidean", "poincare"] | DistanceFunction
NAMES = ("cosine", "euclidean", "poincare")
UNIT_ROUNDOFF = 2.0**-24
BITS = 26
ROWS = 4096


def steps_of(rows: Floats, distance: str) -> Doubles:
    """Return the number (N,) of grid steps per 1 for each of `rows` (N,M), a power of two.

    Euclidean rows have 2^BITS steps up to a power of two not below their norm; other rows are at most 1 long. For norms
    that are exact powers of two, a margin of 1e-7 keeps rounding from choosing the power.
    """
    if distance != "euclidean":
        return np.full(len(rows), 2.0**BITS)
    norms = row_norms(rows)
    exponents = np.ceil(np.log2(np.where(norms > 0, norms, 1.0) * (1 + 1e-7)))
    return np.ldexp(1.0, BITS - exponents.astype(np.int64))


def on_grid(rows: Floats, steps: Doubles) -> Doubles:
    """Return `rows` (B,M) rounded to their grids, float64; `steps` (B,) as from `steps_of`."""
    scaled = np.multiply(rows, steps[:, None], dtype=np.float64)
    np.rint(scaled, out=scaled)
    scaled /= steps[:, None]
    return scaled


def float32_error(dim: int, distance: str) -> float:
    """Bound |float32 key - exact key| for rows of norm at most 1 + 1e-4 (Euclidean: in units of the largest norm).

    The bound is the sum of gamma_M (Higham 2002, section 3.1) for the product, in any summation order, and
    2^-BITS sqrt(M) for the rounding to BITS places.
    """
    gamma = dim * UNIT_ROUNDOFF / (1 - dim * UNIT_ROUNDOFF)
    reading = 2.0**-BITS * dim**0.5
    shifting = 8 * UNIT_ROUNDOFF if distance == "euclidean" else 0.0
    return 1.01 * (gamma + reading + shifting)


def squared_norms(rows: Floats, steps: Doubles) -> Doubles:
    """Return exact squared norms (N,) of `rows` (N,M) on their grids, without a float64 copy of all rows."""
    result = np.empty(len(rows))
    for start in range(0, len(rows), ROWS):
        grid = on_grid(rows[start : start + ROWS], steps[start : start + ROWS])
        result[start : start + ROWS] = np.einsum("ij,ij->i", grid, grid)
    return result


def keys(queries: Doubles, gallery: Doubles, distance: str, norms: Doubles) -> Doubles:
    """Return keys (B,N) of `queries` (B,M) against `gallery` (N,M), both from `on_grid`, of squared `norms` (N,)."""
    values = products(queries, gallery)
    if distance == "euclidean":
        values -= norms / 2
    if distance == "poincare":
        values *= -2.0
        values += np.einsum("ij,ij->i", queries, queries)[:, None]
        values += norms
        values /= norms - 1.0
    return values
