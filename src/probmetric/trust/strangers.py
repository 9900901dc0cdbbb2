"""Certify how often strangers are answered: queries whose class is not in the gallery.

The promise: at most a stated share of strangers is answered, with a stated confidence, for every distribution of their
doubts (`probmetric.trust.tolerance`). The unit of drawing is the stranger; if you have several images of each, name the
strangers by `groups`, and one image of each is used. Strangers of another kind than those sampled break the promise.

Without strangers there is a weaker promise: ask each gallery class as if it were not in the gallery, so that its
queries become strangers (`doubt` of the nearest image of another class). It holds only for strangers that differ from
the gallery's classes as these differ from each other.

    FPIR(t)   share of strangers answered (false positive identification rate)
    FNIR(t)   share of known queries that are withheld or answered wrongly (false negative identification rate)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Bools, Doubles
from probmetric.trust.certificates import units_of
from probmetric.trust.tolerance import one_of_each, tolerance_limit


@dataclass(frozen=True)
class StrangerCertificate:
    """Hold a threshold on the doubt below which at most a stated share of strangers is answered.

    Attributes:
        false_accept: largest share of strangers that is answered.
        confidence: chance, over calibration sets, that this holds.
        threshold: queries with a smaller doubt are answered.
        false_accept_bound: upper bound, at this confidence, of the share of strangers answered.
        coverage: share of the known calibration queries that is answered.
        known: number of known calibration queries.
        strangers: number of strangers that the threshold rests on.
    """

    false_accept: float
    confidence: float
    threshold: float
    false_accept_bound: float
    coverage: float
    known: int
    strangers: int

    def answers(self, doubt: Any) -> Bools:
        """Return which queries of `doubt` (Q,) are answered."""
        return arrays.vector(doubt, "doubt") < self.threshold


def certify_strangers(
    known: Any, strangers: Any, *, false_accept: float, confidence: float = 0.9, groups: Any = None, seed: int = 0
) -> StrangerCertificate:
    """Certify a doubt below which at most a share of strangers is answered.

    Args:
        known: (Q,) doubt of answers to queries whose class is in the gallery.
        strangers: (S,) doubt of answers to queries whose class is not in the gallery.
        false_accept: share of strangers that may be answered.
        confidence: chance that the promise holds.
        groups: (S,) name of each stranger, if some have several images.
        seed: seed of the choice among a stranger's images.

    Raises:
        CertificateError: too few strangers; the message says how many are needed.

    Examples:
        >>> generator = np.random.default_rng(0)
        >>> certificate = certify_strangers(generator.random(500), 0.5 + generator.random(500), false_accept=0.05)
        >>> 0.48 < certificate.threshold < 0.56, 0.45 < certificate.coverage < 0.6
        (True, True)
    """
    doubts, values = arrays.vector(known, "known"), arrays.vector(strangers, "strangers")
    values = values[one_of_each(units_of(groups, len(values)), seed=seed)]
    limit = tolerance_limit(-values, share=false_accept, confidence=confidence, noun="strangers")
    threshold = -limit.threshold
    return StrangerCertificate(
        false_accept=false_accept,
        confidence=confidence,
        threshold=threshold,
        false_accept_bound=limit.bound,
        coverage=float((doubts < threshold).mean()),
        known=len(doubts),
        strangers=limit.values,
    )


def identification_rates(doubt: Any, right: Any, strangers: Any) -> tuple[Doubles, Doubles]:
    """Return FPIR and FNIR (K,) at every threshold of the doubt, ascending, from one that answers no query.

    Args:
        doubt: (Q,) doubt of answers to known queries.
        right: (Q,) whether they are right.
        strangers: (S,) doubt of answers to strangers.

    Examples:
        >>> fpir, fnir = identification_rates([0.1, 0.2, 0.6], [1, 0, 1], [0.5, 0.9])
        >>> fpir.tolist(), fnir.round(2).tolist()
        ([0.0, 0.0, 0.0, 0.5, 0.5, 1.0], [1.0, 0.67, 0.67, 0.67, 0.33, 0.33])
    """
    known, other = arrays.vector(doubt, "doubt"), np.sort(arrays.vector(strangers, "strangers"))
    answered_right = np.sort(known[arrays.booleans(right, "right", count=len(known)).astype(bool)])
    levels = np.concatenate([[-np.inf], np.unique(np.concatenate([known, other]))])
    fpir = np.searchsorted(other, levels, side="right") / len(other)
    fnir = 1 - np.searchsorted(answered_right, levels, side="right") / len(known)
    return fpir, fnir


def fnir_at_fpir(doubt: Any, right: Any, strangers: Any, *, fpir: float = 0.01) -> float:
    """Return the lowest FNIR whose FPIR is at most `fpir`; arguments as of `identification_rates`.

    Examples:
        >>> round(fnir_at_fpir([0.1, 0.2, 0.6], [1, 0, 1], [0.5, 0.9], fpir=0.1), 2)
        0.67
    """
    rates, missed = identification_rates(doubt, right, strangers)
    return float(missed[rates <= fpir].min())
