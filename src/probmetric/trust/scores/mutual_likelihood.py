"""Mutual likelihood score (Shi and Jain 2019, eq. 3): log p(z_q = z_a) of two Gaussian embeddings, up to a constant.

-1/2 sum_d [ (mu_qd - mu_ad)^2 / (s_qd + s_ad) + log(s_qd + s_ad) ],   s the variances.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.trust.scores import score


@score(needs=("mean", "variance"))
def mutual_likelihood(match: Any) -> Any:
    """Minus the mutual likelihood score of query and answer."""
    total = match.query["variance"].astype(float) + match.answer["variance"]
    total = np.maximum(total, np.finfo(np.float32).tiny)
    apart = match.query["mean"].astype(float) - match.answer["mean"]
    return 0.5 * (apart**2 / total + np.log(total)).sum(axis=1)
