"""Measure calibration: does the stated confidence equal the share of right answers?

The N answers are put in bins B_b by their confidence. Lower is better.

    norm "l1"   sum_b |B_b|/N |accuracy_b - confidence_b|: the ECE of Guo et al. (2017)
    norm "l2"   sqrt(sum_b |B_b|/N (accuracy_b - confidence_b)^2): paper 002 prints this as ECE, with 15 bins of equal
                mass
    equal mass  answer i of the N answers in ascending order is in bin floor(i bins / N). Answers of equal confidence
                share their mean correctness, so the order of the input does not matter
    equal width bins are [lo, hi) and the last one is closed. Paper 003's code leaves it open (`last_bin="open"`), which
                drops every answer of confidence exactly 1

`classwise_calibration_error` reads all columns of the probabilities: it is the mean over classes of the calibration
error of p_c for the event "label is c". Nixon et al. (2019) call it static with equal-width bins and adaptive with
equal-mass bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Doubles, Ints
from probmetric.metrics.record import table

Scheme = Literal["equal_mass", "equal_width"]
MOST_BINS = 1_000_000

METRICS = table(
    "calibration",
    __name__,
    """
    ece | ECE ↓ | mean distance between the largest class probability and the share of images whose most probable class
        is right, over 15 bins that hold equally many images
    ece_l2 | ECE (l2) ↓ | `ece` with the root mean square of the distances in place of their mean | what paper 002
        prints as ECE
    ece_equal_width | ECE (equal width) ↓ | `ece` with 15 bins of equal width, weighted by their numbers of images | Guo
        et al. 2017
    ece_classwise | ECE (classwise) ↓ | mean over classes of the distance between a class's probability and the share of
        images of this class, over 15 bins of equal width | Nixon et al. 2019
    ece_adaptive | ECE (adaptive) ↓ | `ece_classwise` with 15 bins that hold equally many images | Nixon et al. 2019
    retrieval_ece | ECE (retrieval) ↓ | in each of S samples the nearest image votes for its class; distance between the
        winner's share of votes and the share of winners that are right, over 10 bins of equal width
    retrieval_ece_as_published | ECE (retrieval as published) ↓ | `retrieval_ece` without the answers whose votes are
        unanimous, because the last bin is open | paper 003's code
    """,
)


@dataclass(frozen=True)
class Reliability:
    """Hold a reliability diagram: mean `confidence`, `accuracy` and `count` (B,) of the bins that have answers."""

    confidence: Doubles
    accuracy: Doubles
    count: Doubles

    def error(self, norm: Literal["l1", "l2"]) -> float:
        """Return the calibration error in the given norm."""
        weight = self.count / self.count.sum()
        gap = np.abs(self.accuracy - self.confidence)
        return float(np.sum(weight * gap) if norm == "l1" else np.sqrt(np.sum(weight * gap**2)))


def calibration_error(
    confidence: Any,
    correct: Any,
    *,
    bins: int = 15,
    scheme: Scheme = "equal_mass",
    norm: Literal["l1", "l2"] = "l1",
    last_bin: Literal["closed", "open"] = "closed",
) -> float:
    """Return the calibration error of `confidence` (N,) in [0,1] for answers right or wrong, `correct` (N,) in {0,1}.

    Examples:
        >>> round(calibration_error([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0], scheme="equal_width"), 12)
        0.15
    """
    arrays.check_choice(norm, "norm", ("l1", "l2"))
    return reliability(confidence, correct, bins=bins, scheme=scheme, last_bin=last_bin).error(norm)


def reliability(
    confidence: Any,
    correct: Any,
    *,
    bins: int = 15,
    scheme: Scheme = "equal_mass",
    last_bin: Literal["closed", "open"] = "closed",
) -> Reliability:
    """Return the data of a reliability diagram; arguments as in `calibration_error`.

    Examples:
        >>> diagram = reliability([0.2, 0.9, 0.9], [0, 1, 0], bins=2, scheme="equal_width")
        >>> diagram.accuracy.tolist(), diagram.count.tolist()
        ([0.0, 0.5], [1.0, 2.0])
    """
    sure = _confidence(confidence)
    right = arrays.booleans(correct, "correct", count=len(sure))
    arrays.check_count(bins, "bins", most=MOST_BINS)
    arrays.check_choice(scheme, "scheme", ("equal_mass", "equal_width"))
    arrays.check_choice(last_bin, "last_bin", ("closed", "open"))
    if last_bin == "open":
        sure, right = sure[sure < 1.0], right[sure < 1.0]
        if not len(sure):
            raise ValueError("every confidence is exactly 1 and last_bin='open' drops them all; use 'closed'.")
    if scheme == "equal_mass":
        return EqualMass(sure, bins).reliability(right)
    index = np.minimum((sure * bins).astype(np.int64), bins - 1)
    return _diagram(index, bins, sure, right)


class EqualMass:
    """Rank confidences (N,) once, to put them in bins of equal mass for many sets of outcomes or of answers."""

    def __init__(self, confidence: Doubles, bins: int) -> None:
        self.sure, self.bins = _confidence(confidence), bins
        values, level = np.unique(self.sure, return_inverse=True)
        self.level = level.astype(np.uint16 if len(values) <= 1 << 16 else np.int64)  # sorting 16 bits is faster

    def reliability(self, right: Array, rows: Ints | slice = slice(None)) -> Reliability:
        """Return the diagram of the answers `rows`, which may repeat, for outcomes `right` (N,) in {0,1}."""
        level, sure, outcome = self.level[rows], self.sure[rows], right[rows]
        alike = np.bincount(level)
        mean = np.bincount(level, weights=outcome) / np.maximum(alike, 1)
        index = np.empty(len(level), dtype=np.int64)
        index[np.argsort(level, kind="stable")] = np.arange(len(level)) * self.bins // len(level)
        return _diagram(index, self.bins, sure, mean[level])


def _diagram(index: Ints, bins: int, sure: Doubles, right: Doubles) -> Reliability:
    """Return the diagram of answers that are in the bins `index` (N,)."""
    count = np.bincount(index, minlength=bins).astype(np.float64)
    held = count > 0
    sums = [np.bincount(index, weights=values, minlength=bins)[held] / count[held] for values in (sure, right)]
    return Reliability(sums[0], sums[1], count[held])


def classwise_calibration_error(
    probabilities: Any,
    labels: Any,
    *,
    bins: int = 15,
    scheme: Scheme = "equal_width",
    norm: Literal["l1", "l2"] = "l1",
) -> float:
    """Return the mean over classes of the calibration error of each column of `probabilities` (N,C) for `labels` (N,).

    Examples:
        >>> round(classwise_calibration_error([[0.8, 0.2], [0.6, 0.4]], [0, 1], bins=1), 12)
        0.2
    """
    rows = arrays.probability_matrix(probabilities)
    classes = arrays.labels_of(labels, len(rows), "labels", "probabilities")
    errors = [
        calibration_error(np.minimum(column, 1.0), classes == number, bins=bins, scheme=scheme, norm=norm)
        for number, column in enumerate(rows.T)
    ]
    return float(np.mean(errors))


def _confidence(values: Any) -> Doubles:
    sure = arrays.vector(values, "confidence")
    bad = np.flatnonzero((sure < 0.0) | (sure > 1.0 + 1e-6))
    if bad.size:
        raise ValueError(f"confidence: entry {bad[0]} is {sure[bad[0]]}; expected numbers between 0 and 1.")
    return np.minimum(sure, 1.0)
