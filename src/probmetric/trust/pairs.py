"""Certify 1:1 decisions: "is this the same person?" is answered yes if the similarity is high enough.

    false accept   yes, although the two identities differ
    false reject   no, although they are the same

The promise: of pairs of different identities at most a stated share is accepted, with a stated confidence
(`probmetric.trust.tolerance`). The unit of drawing is the identity. With named identities, the certificate uses pairs
of different identities that share none, and one pair of every identity with itself. Without names it takes pairs for
independent, but pairs from few people are not. Other people than those sampled (age, camera, relatives) break the
promise, and so do copies.

A share of false accepts is not the probability that an accepted pair is genuine. That probability depends on how often
genuine pairs are asked; `PairCertificate.precision` computes it from a stated prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Bools
from probmetric.trust.certificates import CertificateError, check_shares, upper_bound
from probmetric.trust.tolerance import disjoint_pairs, one_of_each, tolerance_limit


@dataclass(frozen=True)
class PairCertificate:
    """Hold a threshold on the similarity of a pair, and the error rates of its decisions.

    Attributes:
        false_accept: largest share of pairs of different identities that is accepted.
        confidence: chance, over calibration sets, that this holds.
        threshold: pairs with a larger similarity are accepted.
        false_accept_bound: upper bound, at this confidence, of the share accepted; at most `false_accept`.
        false_reject: share of the calibration pairs of one identity that is rejected.
        false_reject_range: Clopper-Pearson interval of `false_reject`; either end is wrong with chance 1 - confidence.
        impostors: number of pairs of different identities that the threshold rests on.
        genuine: number of pairs of one identity that `false_reject` rests on.
        unit: unit that was drawn independently.
    """

    false_accept: float
    confidence: float
    threshold: float
    false_accept_bound: float
    false_reject: float
    false_reject_range: tuple[float, float]
    impostors: int
    genuine: int
    unit: Literal["pair", "identity"]

    def accepts(self, similarity: Any) -> Bools:
        """Return which pairs of `similarity` (P,) are accepted as one identity."""
        return arrays.vector(similarity, "similarity") > self.threshold

    def precision(self, prior: float) -> float:
        """Return a lower bound of P(same identity | accepted), where a share `prior` of the pairs asked is genuine.

        It combines the bounds of false accepts and of false rejects; both hold together with probability at least
        1 - 2 (1 - confidence).
        """
        check_shares(prior=prior)
        genuine = prior * (1 - self.false_reject_range[1])
        accepted = genuine + (1 - prior) * self.false_accept_bound
        return genuine / accepted if accepted else 0.0


def certify_pairs(
    similarity: Any, same: Any, *, false_accept: float, confidence: float = 0.9, identities: Any = None, seed: int = 0
) -> PairCertificate:
    """Certify a similarity above which at most a share of pairs of different identities is accepted.

    Args:
        similarity: (P,) similarity of each calibration pair, higher = more alike.
        same: (P,) whether each pair shows one identity.
        false_accept: share of pairs of different identities that may be accepted.
        confidence: chance that the promise holds.
        identities: (P, 2) names of the identities of every pair, to choose independent pairs.
        seed: seed of this choice.

    Raises:
        CertificateError: too few pairs of different identities, or no pair of one; the message says how many you need.
        ValueError: lengths that differ, or identities that contradict `same`.

    Examples:
        >>> generator = np.random.default_rng(0)
        >>> same = np.arange(4000) < 1000
        >>> certificate = certify_pairs(generator.normal(3.0 * same), same, false_accept=0.01)
        >>> 2.2 < certificate.threshold < 2.7, certificate.false_accept_bound <= 0.01
        (True, True)
        >>> round(certificate.precision(prior=0.5), 2), round(certificate.precision(prior=0.001), 2)
        (0.99, 0.06)
    """
    check_shares(false_accept=false_accept, confidence=confidence)
    values = arrays.vector(similarity, "similarity")
    genuine = arrays.booleans(same, "same", count=len(values)).astype(bool)
    impostor_rows, genuine_rows = np.flatnonzero(~genuine), np.flatnonzero(genuine)
    if identities is not None:
        numbers = _checked(identities, genuine)
        impostor_rows = impostor_rows[disjoint_pairs(numbers[impostor_rows], seed=seed)]
        genuine_rows = genuine_rows[one_of_each(numbers[genuine_rows, 0], seed=seed)]
    if not len(genuine_rows) or not len(impostor_rows):
        raise CertificateError(
            f"calibration has {len(genuine_rows)} pairs of one identity and {len(impostor_rows)} of two; "
            "both are needed."
        )
    noun = "pairs of different identities" + (" that share none" if identities is not None else "")
    limit = tolerance_limit(values[impostor_rows], share=false_accept, confidence=confidence, noun=noun)
    rejected = int((values[genuine_rows] <= limit.threshold).sum())
    count = len(genuine_rows)
    return PairCertificate(
        false_accept=false_accept,
        confidence=confidence,
        threshold=limit.threshold,
        false_accept_bound=limit.bound,
        false_reject=rejected / count,
        false_reject_range=(
            1 - upper_bound(count - rejected, count, confidence) if rejected else 0.0,
            upper_bound(rejected, count, confidence),
        ),
        impostors=limit.values,
        genuine=count,
        unit="pair" if identities is None else "identity",
    )


def _checked(identities: Any, same: Bools) -> Array:
    """Return the identities of every pair as numbers (P, 2)."""
    names = arrays.to_numpy(identities)
    if names.shape != (len(same), 2):
        raise ValueError(f"identities has shape {names.shape}; expected ({len(same)}, 2), two for every pair.")
    numbers: Array = arrays.names_of(names.ravel(), "identities", count=names.size)[1].reshape(names.shape)
    contradicted = np.flatnonzero((numbers[:, 0] == numbers[:, 1]) != same)
    if len(contradicted):
        row = contradicted[0]
        first, second = names[row].tolist()
        raise ValueError(
            f"pair {row} is of {first!r} and {second!r}, but `same` says {bool(same[row])}; "
            f"{len(contradicted)} pair(s) contradict their identities."
        )
    return numbers
