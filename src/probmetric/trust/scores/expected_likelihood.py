"""Do query and answer show the same direction? The vMF expected-likelihood kernel of both (paper 000, eq. 7).

With nu = kappa mu: log of the integral of vMF(x; nu_q) vMF(x; nu_a) over the sphere
    = log C(|nu_q|) + log C(|nu_a|) - log C(|nu_q + nu_a|).
For a posterior that was sampled the concentrations are those of the vMF with the samples' mean resultant length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.trust.scores import score
from probmetric.trust.scores._normalizer import log_normalizer


@score(needs=("mean", "concentration"))
def expected_likelihood(match: Any) -> Any:
    """Minus the log expected likelihood of query and answer as vMF distributions."""
    both = [record["concentration"][:, None] * record["mean"].astype(float) for record in (match.query, match.answer)]
    lengths = [np.linalg.norm(nu, axis=1) for nu in (*both, both[0] + both[1])]
    first, second, together = (log_normalizer(length, both[0].shape[1]) for length in lengths)
    return together - first - second
