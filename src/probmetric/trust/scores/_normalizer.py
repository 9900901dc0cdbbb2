"""Log normaliser of the vMF in NumPy: the evaluate step does not load PyTorch for one formula.

log C_M(kappa) = nu log kappa - (nu + 1) log 2 pi - log I_nu(kappa), nu = M/2 - 1. Below nu = 15 by SciPy's scaled I_nu,
above by Olver's uniform expansion (DLMF 10.41.3) with three terms; `probmetric.directional` is the exact one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]

EXPANDED_FROM = 15.0
SMALLEST = 1e-30


def log_normalizer(kappa: Doubles, dim: int) -> Doubles:
    """Log C_M (N,) of concentrations (N,) >= 0 in `dim` = M >= 2 dimensions.

    Examples:
        >>> round(float(log_normalizer(np.array([0.0]), 2)[0]), 6)  # uniform on the circle: -log 2 pi
        -1.837877
    """
    nu = dim / 2 - 1
    values = np.maximum(kappa, SMALLEST)
    return -(nu + 1) * np.log(2 * np.pi) - _log_bessel_over_power(nu, values)


def _log_bessel_over_power(nu: float, kappa: Doubles) -> Doubles:
    """log(I_nu(kappa) / kappa^nu)."""
    if nu < EXPANDED_FROM:
        from scipy.special import gammaln, ive

        near = kappa < 1e-3
        value = -nu * np.log(2.0) - gammaln(nu + 1) + kappa**2 / (4 * (nu + 1))
        value[~near] = np.log(ive(nu, kappa[~near])) + kappa[~near] - nu * np.log(kappa[~near])
        return value
    z = kappa / nu
    root = np.sqrt(1 + z**2)
    p = 1 / root
    terms = (
        (3 * p - 5 * p**3) / 24,
        (81 * p**2 - 462 * p**4 + 385 * p**6) / 1152,
        (30375 * p**3 - 369603 * p**5 + 765765 * p**7 - 425425 * p**9) / 414720,
    )
    series = sum(term / nu ** (place + 1) for place, term in enumerate(terms))
    return nu * (root - np.log1p(root) - np.log(nu)) - 0.5 * np.log(2 * np.pi * nu * root) + np.log1p(series)
