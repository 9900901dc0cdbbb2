"""Expected cosine of two Gaussian embeddings, in closed form (Baumann et al. 2024, ProbCosine).

    E[cos] = sum_d mu_qd mu_ad / sqrt( sum_d (mu_qd^2 + s_qd) sum_d (mu_ad^2 + s_ad) ),   s the variances:
the expected product over the root of the expected squared lengths; no samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.trust.scores import score


@score(needs=("mean", "variance"))
def expected_cosine(match: Any) -> Any:
    """1 - expected cosine of query and answer as Gaussians."""
    pairs = [(record["mean"].astype(float), record["variance"]) for record in (match.query, match.answer)]
    lengths = [(mean**2 + variance).sum(axis=1) for mean, variance in pairs]
    return 1.0 - (pairs[0][0] * pairs[1][0]).sum(axis=1) / np.sqrt(lengths[0] * lengths[1])
