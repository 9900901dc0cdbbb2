"""Collect the answers of a gallery: match record, scores and truth of every query, and metrics of trust.

Queries without a positive in the gallery have no right answer: they are recorded (`asked` 0) and left out of metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Bools, Doubles, Ints
from probmetric.metrics.elsewhere import BY_P_RIGHT
from probmetric.metrics.ood import auroc
from probmetric.metrics.selective import selective_metrics
from probmetric.retrieval import Match, find_match, match_among
from probmetric.trust import scores
from probmetric.trust.p_right import PRight, added_auroc, cross_fitted, fit_p_right, p_right_metrics

KEPT = ("uncertainty", "concentration", "variance", "mean")
LEAST = 2


@dataclass(frozen=True)
class Answers:
    """Hold the answers to Q queries.

    Attributes:
        match: result of the search.
        doubts: score -> doubt (Q,), higher = less sure.
        own: (Q,) own uncertainty of each query's image.
        label: (Q,) class of each query, -1 for strangers.
        right: (Q,) whether the answer is right. Of images exactly as near, the first decides in a gallery; if images
            are asked among the others, a wrong one decides.
        asked: (Q,) whether the query has a positive in the gallery.
        retrieval: retrieval metrics of each query, as of `retrieval_per_query`; empty where a gallery was asked.
    """

    match: Match
    doubts: Mapping[str, Doubles]
    own: Doubles
    label: Ints
    right: Bools
    asked: Bools
    retrieval: Mapping[str, Doubles] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        """Whether some answers are right and some are wrong, so that a score can separate them."""
        return 0 < self.right[self.asked].sum() < self.asked.sum()

    @property
    def told_apart(self) -> bool:
        """Whether maps that are fitted to some classes and judged on others can separate right and wrong answers."""
        return self.mixed and len(np.unique(self.label[self.asked])) >= LEAST

    @property
    def free(self) -> dict[str, Doubles]:
        """The doubts that every search returns."""
        return {name: values for name, values in self.doubts.items() if name in scores.free_scores()}

    @property
    def of_method(self) -> dict[str, Doubles]:
        """The doubts that only the method has: its own uncertainty and its scores of the pair."""
        return {"own": self.own} | {name: values for name, values in self.doubts.items() if name not in self.free}

    def rows(self, kept: Bools) -> Answers:
        """Return the answers that are `kept` (Q,)."""
        return Answers(
            self.match.rows(kept),
            {name: values[kept] for name, values in self.doubts.items()},
            self.own[kept],
            self.label[kept],
            self.right[kept],
            self.asked[kept],
            {name: values[kept] for name, values in self.retrieval.items()},
        )

    def tensors(self) -> dict[str, Array]:
        """Return the arrays (Q,) kept on disk: the match record, `doubt.<score>`, own, label, right and asked."""
        record = self.match.record | {f"doubt.{name}": values for name, values in self.doubts.items()}
        record |= {"own": self.own, "label": self.label, "right": self.right, "asked": self.asked}
        return {name: np.ascontiguousarray(values) for name, values in record.items()}


def among_others(record: Mapping[str, Any], labels: Any, ks: Sequence[int] = ()) -> Answers:
    """Ask every image of a `record`, name -> (N, ...), with `labels` (N,), among the others.

    The same pass gives the retrieval metrics, with recall and precision at 1 and at the cutoffs `ks`.
    """
    match, retrieval = match_among(_kept(record), labels, ks=(1, *ks))
    answers = _answers(match, arrays.to_numpy(labels), retrieval["recall_at_1"] == 1, retrieval["positives"] > 0)
    return replace(answers, retrieval=retrieval)


def some_among_others(record: Mapping[str, Any], labels: Any, rows: Ints, ignore: Any = None) -> Answers:
    """Ask the images at `rows` (Q,) of a `record`, name -> (N, ...), with `labels` (N,), among the others.

    `ignore` (P,2) holds pairs of a query and a row that it must not find, such as a copy. A wrong answer exactly as
    near as a right one ranks before it.
    """
    classes, pairs = arrays.to_numpy(labels), np.empty((0, 2), dtype=np.int64) if ignore is None else ignore
    queries = {name: values[rows] for name, values in _kept(record).items()}
    match = find_match(queries, _kept(record), classes, self_index=rows, ignore=pairs)
    truth = classes[rows]
    positives = np.bincount(classes)[truth] - 1
    positives -= np.bincount(pairs[truth[pairs[:, 0]] == classes[pairs[:, 1]], 0], minlength=len(rows))
    nearer = True if match.gap is None else match.gap > 0
    return _answers(match, truth, (match.classes[:, 0] == truth) & nearer, positives > 0)


def asked_in(
    record: Mapping[str, Any], labels: Any, gallery: Mapping[str, Any], gallery_labels: Any, *, ignore: Any = None
) -> Answers:
    """Ask the images of a `record` in a gallery; both are name -> (N, ...), with labels (N,), -1 for strangers.

    An answer is right if its class is the query's. A query whose class is not in the gallery is not `asked`, and every
    answer to it is wrong. `ignore` names rows that a query must not find, in a form that `search` takes.
    """
    return answers_of(find_match(_kept(record), _kept(gallery), gallery_labels, ignore=ignore), labels, gallery_labels)


def answers_of(match: Match, labels: Any, gallery_labels: Any) -> Answers:
    """Return the answers that a `match` gives to queries with `labels` (Q,), right by the rule of `asked_in`."""
    truth = arrays.to_numpy(labels).astype(np.int64)
    return _answers(match, truth, match.classes[:, 0] == truth, np.isin(truth, arrays.to_numpy(gallery_labels)))


def _kept(record: Mapping[str, Any]) -> dict[str, Array]:
    return {name: arrays.to_numpy(record[name]) for name in KEPT if name in record}


def _answers(match: Match, label: Ints, right: Bools, asked: Bools) -> Answers:
    return Answers(match, scores.doubts(match), match.query["uncertainty"].astype(np.float64), label, right, asked)


def p_right_of(answers: Mapping[str, Answers]) -> PRight | None:
    """Fit the map from free scores to P(right) on validation classes; None if all their answers are right or wrong."""
    val, test = answers.get("val"), answers.get("test")
    if val is None or test is None or not val.mixed:
        return None
    shared = {name: values[val.asked] for name, values in val.free.items() if name in test.free}
    return fit_p_right(shared, val.right[val.asked]) if shared else None


def error_aurocs(answers: Answers) -> dict[str, float]:
    """Return score -> P(a wrong answer has more of this doubt than a right one); NaN if all are right or all wrong."""
    right, wrong = answers.asked & answers.right, answers.asked & ~answers.right
    return {
        name: auroc(doubt[right], doubt[wrong]) if answers.mixed else math.nan for name, doubt in answers.doubts.items()
    }


def stranger_aurocs(familiar: Answers, strangers: Answers) -> dict[str, float]:
    """Compare every doubt of answers to strangers with that of answers to `familiar` queries that are `asked`.

    Returns:
        `auroc_<score>`: strangers against familiar queries; `scod_auroc[_<score>]`: strangers and wrong answers against
        right answers.
    """
    familiar = familiar.rows(familiar.asked)
    right, wrong = familiar.right, ~familiar.right
    aurocs = {f"auroc_{name}": auroc(doubt, strangers.doubts[name]) for name, doubt in familiar.doubts.items()}
    pairs = {"": (familiar.own, strangers.own)}
    pairs |= {f"_{name}": (doubt, strangers.doubts[name]) for name, doubt in familiar.doubts.items()}
    for suffix, (doubt, strange) in pairs.items() if right.any() else ():
        aurocs[f"scod_auroc{suffix}"] = auroc(doubt[right], np.concatenate([doubt[wrong], strange]))
    return aurocs


def cross_fitted_free(answers: Answers, *, seed: int = 0) -> Doubles | None:
    """Return P(right) (A,) of the A answers `asked`, from free scores, each by a map that saw only other classes.

    None if some part of the classes leaves only right or only wrong answers.
    """
    kept = answers.asked
    free = {name: values[kept] for name, values in answers.free.items()}
    try:
        return cross_fitted(free, answers.right[kept], answers.label[kept], seed=seed) if answers.told_apart else None
    except ValueError:
        return None


def trust_metrics(answers: Mapping[str, Answers], *, seed: int = 0) -> tuple[dict[str, float], Doubles | None]:
    """Return `trust/...`, `p_right/...`, `p_right_val/...`, and P(right) (A,) of the A test answers that are `asked`.

    `p_right` is cross-fitted: every P(right) comes from a map that saw other classes of the same gallery. For
    `p_right_val` the map was fitted on the validation classes and their smaller gallery.
    """
    test = answers.get("test")
    stated = None if test is None else cross_fitted_free(test, seed=seed)
    if test is None or stated is None:
        return {}, None
    kept, right = test.asked, test.right[test.asked]
    free, of_method = ({name: v[kept] for name, v in part.items()} for part in (test.free, test.of_method))
    groups = {
        "trust": added_auroc(free, of_method, right, test.label[kept], seed=seed),
        "p_right": p_right_metrics(stated, right),
    }
    selective = selective_metrics(1.0 - stated, right)
    groups["p_right"] |= {name: selective[name] for name in BY_P_RIGHT}
    by_validation = p_right_of(answers)
    if by_validation is not None:
        groups["p_right_val"] = p_right_metrics(by_validation.probability(free), right)
    return {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}, stated
