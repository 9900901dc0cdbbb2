"""ProxyNCA++ (Teh et al. 2020; NIR eq. 4): cross-entropy over proxy distances.

With embeddings x_i, proxies p_c and T = `temperature`,

    L = mean_i -log [ exp(-d_{i,y_i} / T) / sum_c exp(-d_ic / T) ]

    corrected      d_ic = |x_i/|x_i| - p_c/|p_c| |^2, T = 1/9: Teh et al.'s definition
    as_published   d_ic = |x_i/|x_i| - p_c/|p_c| | / sqrt(T): the unsquared distance between vectors of norm 3 that the
                   code released with the non-isotropic papers calls ProxyNCA++
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from probmetric.losses import register
from probmetric.losses._base import Loss, safe_sqrt
from probmetric.losses.proxy_nca import ProxyNCA


@register
class ProxyNCAPlusPlus(ProxyNCA):
    """ProxyNCA++ with one proxy per class."""

    def __init__(self, *, fidelity: Literal["corrected", "as_published"] = "corrected", **shared: Any) -> None:
        super().__init__(**shared)
        self.unsquared = fidelity == "as_published"

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return negative scaled distances, (B, C)."""
        logits = super().logits(embeddings)
        return -safe_sqrt(-logits) if self.unsquared else logits

    compute = Loss.compute  # with the target's proxy in the sum
