"""Measure verification ("do two images show the same person?") by the protocol of Labeled Faces in the Wild.

Notation: s_p is the cosine similarity of pair p; the answer is "same" where s_p >= threshold. `METRICS` defines the
metrics. For `accuracy` the pairs are cut into 10 parts: every tenth pair of either kind, in the order given (Huang et
al. 2007, view 2). If no threshold gives both rates of `eer`, it lies on the line between two points of the ROC curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Bools, Doubles, Ints
from probmetric.metrics.correlation import group_means
from probmetric.metrics.ood import auroc
from probmetric.metrics.record import table

FOLDS = 10
FALSE_ACCEPTS = 0.01

METRICS = table(
    "verification",
    __name__,
    """
    accuracy | Accuracy ↑ | share of pairs told right; each tenth of the pairs is judged by the threshold that is best
        on the other nine
    auroc | AUROC ↑ | P(a pair of one person has a higher cosine than a pair of two persons); ties count half
    eer | Equal error rate ↓ | error rate at the point of the ROC curve where the refused share of the pairs of one
        person equals the accepted share of the pairs of two persons
    tar_at_far_1 | TAR at 1 % FAR ↑ | accepted share of the pairs of one person, at the threshold that accepts at most 1
        % of the pairs of two persons
    edc | FNMR under discard ↓ | share of the pairs of one person that is refused, averaged while 0, 1, ..., 20 % of the
        pairs are discarded, least certain image first; the threshold accepts at most 1 % of all pairs of
        two persons | error versus discard, ISO/IEC 29794-1:2024
    """,
)


@dataclass(frozen=True)
class Pairs:
    """Hold pairs of images and whether they show the same person.

    Attributes:
        rows: manifest rows of the two images (P, 2).
        same: (P,) bool.
    """

    rows: Ints
    same: Bools

    def similarities(self, mean: NDArray[np.floating], index: Ints) -> Doubles:
        """Return the cosine of each pair (P,).

        Args:
            mean: unit embeddings (N, M).
            index: their manifest rows (N,), ascending.
        """
        place = self._places(index)
        first, second = mean[place[:, 0]].astype(np.float64), mean[place[:, 1]].astype(np.float64)
        return np.einsum("pm,pm->p", first, second)

    def doubt(self, uncertainty: NDArray[np.floating], index: Ints) -> Doubles:
        """Return the uncertainty (P,) of the less certain image of each pair, from the images' `uncertainty` (N,)."""
        return np.asarray(uncertainty[self._places(index)].max(axis=1), dtype=np.float64)

    def _places(self, index: Ints) -> Ints:
        """Return the places (P, 2) of the pairs' manifest rows in `index` (N,), which is ascending."""
        place = np.searchsorted(index, self.rows).clip(max=len(index) - 1)
        absent = np.flatnonzero((index[place] != self.rows).any(axis=1))
        if len(absent):
            raise ValueError(f"pair {absent[0]} holds manifest rows {self.rows[absent[0]]}; not all are embedded.")
        return place


def verification_metrics(similarity: Any, same: Any) -> dict[str, float]:
    """Return the `METRICS` except `edc`, from similarities (P,) and truth (P,).

    Examples:
        >>> metrics = verification_metrics(np.array([0.9, 0.2] * 10), np.array([True, False] * 10))
        >>> metrics["accuracy"], metrics["auroc"], metrics["eer"]
        (1.0, 1.0, 0.0)
    """
    scores, truth = _both_kinds(similarity, same)
    accepted, passed = (_from_each_level(scores, scores[kind])[1] for kind in (~truth, truth))
    refused = 1 - passed
    strict = int(np.flatnonzero(accepted <= FALSE_ACCEPTS)[0])
    return {
        "accuracy": _accuracy(scores, truth),
        "auroc": auroc(scores[~truth], scores[truth]),
        "eer": float(np.interp(0.0, refused - accepted, refused)),
        "tar_at_far_1": float(passed[strict]),
    }


def error_versus_discard(similarity: Any, same: Any, doubt: Any, *, most: float = 0.2) -> float:
    """Return the refused share of genuine pairs, a mean while 0, .01, ..., `most` of the pairs are discarded.

    The most doubtful pairs go first. The threshold accepts at most 1 % of all impostor pairs and stays the same (error
    versus discard, ISO/IEC 29794-1:2024). Equally doubtful pairs lose the same share of either kind. A step that leaves
    no genuine pair is left out.

    Args:
        similarity: (P,) similarity of each pair.
        same: (P,) whether each pair is genuine.
        doubt: (P,) doubt of the less certain image of each pair.
        most: largest share discarded, in steps of a hundredth.

    Examples:
        >>> pairs = np.array([0.9, 0.1, 0.8, 0.2]), np.array([True, True, False, False])
        >>> error_versus_discard(*pairs, np.zeros(4), most=0.0), error_versus_discard(*pairs, np.array([0, 1, 0, 0]))
        (0.5, 0.5)
    """
    scores, truth = _both_kinds(similarity, same)
    levels, accepted = _from_each_level(scores, scores[~truth])
    wrong = truth & (scores < levels[np.flatnonzero(accepted <= FALSE_ACCEPTS)[0]])
    doubts = arrays.vector(doubt, "doubt", count=len(scores))
    order = np.argsort(doubts, kind="stable")
    genuine, refused = (
        np.cumsum(np.r_[0.0, group_means(doubts, each.astype(np.float64))[order]]) for each in (truth, wrong)
    )
    kept = len(scores) - len(scores) * np.arange(round(100 * most) + 1) // 100
    kept = kept[genuine[kept] > 0]
    return float(np.mean(refused[kept] / genuine[kept]))


def _both_kinds(similarity: Any, same: Any) -> tuple[Doubles, Bools]:
    """Return similarities (P,) and whether the pairs are genuine (P,); raise a ValueError for pairs of one kind."""
    scores = arrays.vector(similarity, "similarity")
    truth = arrays.booleans(same, "same", count=len(scores)).astype(bool)
    if truth.all() or not truth.any():
        raise ValueError(f"{int(truth.sum())} of {len(truth)} pairs are of one person; both kinds are needed.")
    return scores, truth


def _from_each_level(scores: Doubles, some: Doubles) -> tuple[Doubles, Doubles]:
    """Return thresholds (the distinct `scores`, ascending, and infinity) and the share of `some` scores from each on.

    The share is a quotient of counts, because 1 - 99 / 100 is more than 0.01.
    """
    levels: Doubles = np.append(np.unique(scores), np.inf)
    return levels, (len(some) - np.searchsorted(np.sort(some), levels)) / len(some)


def _accuracy(scores: Doubles, truth: Bools) -> float:
    """Return the share told right, each part by the others' best threshold; NaN for a single pair."""
    part = np.where(truth, np.cumsum(truth), np.cumsum(~truth)) % min(FOLDS, truth.sum(), (~truth).sum())
    if part.max() == 0:
        return float("nan")
    right = 0
    for fold in np.unique(part):
        here = part == fold
        right += int(((scores[here] >= _best_threshold(scores[~here], truth[~here])) == truth[here]).sum())
    return right / len(scores)


def _best_threshold(scores: Doubles, truth: Bools) -> float:
    """Return the lowest threshold, in the middle between two scores, that tells most pairs right."""
    order = np.argsort(scores, kind="stable")
    ordered, ones = scores[order], truth[order]
    right = np.r_[ones.sum(), ones.sum() + np.cumsum(np.where(ones, -1, 1))]
    cut = np.r_[True, np.diff(ordered) > 0, True]
    best = int(np.argmax(np.where(cut, right, -1)))
    if best in (0, len(ordered)):
        return float(ordered[0]) if best == 0 else np.inf
    return float(max((ordered[best - 1] + ordered[best]) / 2, np.nextafter(ordered[best - 1], np.inf)))
