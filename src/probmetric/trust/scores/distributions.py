"""Score a pair by the method's distributions of query and answer.

For two Gaussian embeddings with means mu and variances s, in closed form:

    expected_cosine     E[cos] = sum_d mu_qd mu_ad / sqrt( sum_d (mu_qd^2 + s_qd) sum_d (mu_ad^2 + s_ad) ), the expected
                        product over the root of the expected squared lengths (Baumann et al. 2024, ProbCosine)
    cosine_spread       Var[cos] = sum_d [ mu_qd^2 s_ad + mu_ad^2 s_qd + s_qd s_ad ] over the same product of lengths
    mutual_likelihood   log p(z_q = z_a) = -1/2 sum_d [ (mu_qd - mu_ad)^2 / (s_qd + s_ad) + log(s_qd + s_ad) ], up to a
                        constant (Shi and Jain 2019, eq. 3)

For two vMF distributions, with nu = kappa mu, the expected-likelihood kernel (paper 000, eq. 7): log of the integral of
vMF(x; nu_q) vMF(x; nu_a) over the sphere

    expected_likelihood  log C(|nu_q|) + log C(|nu_a|) - log C(|nu_q + nu_a|)

For a sampled posterior, the concentration is that of the vMF with the samples' mean resultant length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probmetric.trust.scores import score


@score(needs=("uncertainty",))
def answer_uncertainty(match: Any) -> Any:
    """Return the uncertainty of the nearest image."""
    return match.answer["uncertainty"].astype(float)


@score(needs=("mean", "variance"))
def expected_cosine(match: Any) -> Any:
    """Return 1 - expected cosine of query and answer as Gaussians."""
    pairs = [(record["mean"].astype(float), record["variance"]) for record in (match.query, match.answer)]
    lengths = [(mean**2 + variance).sum(axis=1) for mean, variance in pairs]
    return 1.0 - (pairs[0][0] * pairs[1][0]).sum(axis=1) / np.sqrt(lengths[0] * lengths[1])


@score(needs=("mean", "variance"))
def cosine_spread(match: Any) -> Any:
    """Return the standard deviation of the cosine of query and answer as Gaussians."""
    (first, s), (second, t) = (
        (record["mean"].astype(float), record["variance"].astype(float)) for record in (match.query, match.answer)
    )
    lengths = (first**2 + s).sum(axis=1) * (second**2 + t).sum(axis=1)
    return np.sqrt((first**2 * t + second**2 * s + s * t).sum(axis=1) / lengths)


@score(needs=("mean", "variance"))
def mutual_likelihood(match: Any) -> Any:
    """Return minus the mutual likelihood score of query and answer."""
    total = match.query["variance"].astype(float) + match.answer["variance"]
    total = np.maximum(total, np.finfo(np.float32).tiny)
    apart = match.query["mean"].astype(float) - match.answer["mean"]
    return 0.5 * (apart**2 / total + np.log(total)).sum(axis=1)


@score(needs=("mean", "concentration"))
def expected_likelihood(match: Any) -> Any:
    """Return minus the log expected likelihood of query and answer as vMF distributions."""
    import torch

    from probmetric.directional import log_normalizer

    both = [record["concentration"][:, None] * record["mean"].astype(float) for record in (match.query, match.answer)]
    lengths = np.stack([np.linalg.norm(nu, axis=1) for nu in (*both, both[0] + both[1])])
    dim = both[0].shape[1]
    if dim == 1:  # two points: log C = -log(2 cosh kappa)
        first, second, together = -np.logaddexp(lengths, -lengths)
    else:
        first, second, together = log_normalizer(torch.from_numpy(lengths), dim).numpy()
    return together - first - second
