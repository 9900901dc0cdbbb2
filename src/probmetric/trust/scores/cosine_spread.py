"""Spread of the cosine of two Gaussian embeddings, in closed form (Baumann et al. 2024, ProbCosine).

    Var[cos] = sum_d [ mu_qd^2 s_ad + mu_ad^2 s_qd + s_qd s_ad ] / ( sum_d (mu_qd^2 + s_qd) sum_d (mu_ad^2 + s_ad) ),
the variance of the product over the expected squared lengths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.trust.scores import score


@score(needs=("mean", "variance"))
def cosine_spread(match: Any) -> Any:
    """Standard deviation of the cosine of query and answer as Gaussians."""
    (first, s), (second, t) = (
        (record["mean"].astype(float), record["variance"].astype(float)) for record in (match.query, match.answer)
    )
    lengths = (first**2 + s).sum(axis=1) * (second**2 + t).sum(axis=1)
    return np.sqrt((first**2 * t + second**2 * s + s * t).sum(axis=1) / lengths)
