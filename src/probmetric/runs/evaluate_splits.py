"""Metrics of the test split (retrieval, clustering, structure, selective answers, classification) and of strangers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probmetric.config import Evaluation
from probmetric.metrics.calibration import EqualMass, Reliability, reliability
from probmetric.metrics.classification import classification_metrics
from probmetric.metrics.clustering import clustering_metrics
from probmetric.metrics.image_errors import (
    auroc_error,
    error_of_auroc,
    image_curves,
    known_errors,
    mean_error,
    resampled,
)
from probmetric.metrics.ood import auroc, ood_metrics, roc_curve
from probmetric.metrics.ranked import metric_names
from probmetric.metrics.selective import selective_metrics, sparsification
from probmetric.metrics.structure import structure_metrics
from probmetric.retrieval.measures import retrieval_per_query, summarize
from probmetric.retrieval.votes import retrieval_votes, sampled_retrieval_metrics, vote_reliability
from probmetric.runs.evaluate_answers import ood_sets, ood_source
from probmetric.runs.folder import Embeddings
from probmetric.trust.answers import Answers, error_aurocs, stranger_aurocs

PerQuery = dict[str, NDArray[np.float64]]

SAMPLED_SETS = 10
CURVE_POINTS = 200
_LARGEST_RADIUS = 1.0 - 1e-3
Curves = dict[str, dict[str, list[float]]]


@dataclass
class Found:
    """Metrics by name, curves by name, and the standard errors of metrics over the images (NaN = not known)."""

    metrics: dict[str, float] = field(default_factory=dict)
    curves: Curves = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def add(self, group: str, values: Mapping[str, float]) -> None:
        """Metrics `<group>/<name>`."""
        self.metrics |= {f"{group}/{name}": value for name, value in values.items()}

    def add_diagram(self, name: str, found: Reliability) -> None:
        """A reliability diagram as a curve."""
        self.curves[name] = {part: getattr(found, part).tolist() for part in ("confidence", "accuracy", "count")}

    def merge(self, other: Found) -> None:
        """Take over all that `other` holds."""
        self.metrics |= other.metrics
        self.curves |= other.curves
        self.errors |= other.errors

    def all_curves(self) -> Curves:
        """The curves, and the known errors as the curve `image_errors`."""
        known = known_errors(self.errors)
        return self.curves | ({"image_errors": known} if known else {})


def evaluate_test(test: Embeddings, settings: Evaluation, answers: Answers | None) -> Found:
    """Return all that the test split's embeddings say without other splits; `answers` as in `evaluate_run`."""
    found = answer_metrics(test, settings, answers)
    if settings.clustering:
        found.add("clustering", clustering_metrics(test["mean"], test["label"], seed=settings.seed))
    found.add("structure", structure_metrics(test["mean"], test["label"]))
    return found


def answer_metrics(test: Embeddings, settings: Evaluation, answers: Answers | None) -> Found:
    """Return what the answers to a split's images say: retrieval, selective answers, samples, classification."""
    queries = per_query(test, tuple(dict.fromkeys((1, *settings.ks))), answers)
    found = Found()
    found.add("retrieval", summarize(queries))
    _other_spaces(found, test, settings)
    if np.any(queries["positives"] > 0):
        if "samples" in test.tensors:
            _sampled(found, test, settings)
        if answers is not None:
            _selective(found, test, queries, answers)
    columns = _columns(test)
    if columns is not None:
        _classification(found, test, columns, settings)
    return found


def evaluate_ood(test: Embeddings, ood: Embeddings, answers: Mapping[str, Answers]) -> Found:
    """Return detection metrics and ROC curve of each set in `ood` against the test split, and the means over the sets.

    A set without images is left out. `answers` as in `evaluate_run`.
    """
    source = ood_source(ood)
    numbers = {name: number for number, name in enumerate(ood_sets(ood)) if np.any(source == number)}
    found = Found()
    for name, number in numbers.items():
        doubt = ood["uncertainty"][source == number]
        found.add(f"ood/{name}", ood_metrics(test["uncertainty"], doubt))
        rates = roc_curve(test["uncertainty"], doubt, points=CURVE_POINTS)
        found.curves[f"roc/{name}"] = {key: values.tolist() for key, values in rates.items()}
        found.errors[f"ood/{name}/auroc"] = auroc_error(test["uncertainty"], doubt)
        if "test" in answers and f"ood/{name}" in answers:
            found.add(f"ood/{name}", stranger_aurocs(answers["test"], answers[f"ood/{name}"]))
    if numbers:
        kinds = ("auroc", "auprc", "fpr_at_95")
        means = {kind: np.mean([found.metrics[f"ood/{name}/{kind}"] for name in numbers]) for kind in kinds}
        found.add("ood", {kind: float(value) for kind, value in means.items()})
    return found


def per_query(split: Embeddings, ks: tuple[int, ...], answers: Answers | None) -> PerQuery:
    """Retrieval metrics of each image of a split, read from its answers where these have all cutoffs."""
    listed = {} if answers is None else answers.retrieval
    names = [*metric_names(ks), "positives"]
    if all(name in listed for name in names):
        return {name: listed[name] for name in names}
    return retrieval_per_query(split["mean"], split["label"], ks=ks)


def selective(
    split: Embeddings, queries: PerQuery, answers: Answers
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Selective metrics with the query's own uncertainty, and AUSC with the mean of query's and neighbour's (003).

    Returns:
        Metrics, and the sparsification curve by the query's own uncertainty.
    """
    asked = queries["positives"] > 0
    correct, doubt = queries["recall_at_1"], split["uncertainty"].astype(np.float64)
    pair = (doubt + doubt[answers.match.indices[:, 0]]) / 2
    curve, _ = sparsification(doubt[asked], correct[asked])
    metrics = selective_metrics(doubt[asked], correct[asked])
    metrics |= {f"error_auroc_{score}": value for score, value in error_aurocs(answers).items()}
    metrics["ausc_query_and_neighbour"] = sparsification(pair[asked], correct[asked])[1]
    metrics["ausc_as_published"] = sparsification(pair[asked], correct[asked], scaling="as_published")[1]
    metrics["ausc_as_published_empty_as_zero"] = sparsification(pair, correct, scaling="as_published")[1]
    return metrics, {"removed": curve.removed.tolist(), "accuracy": curve.accuracy.tolist()}


def _other_spaces(found: Found, test: Embeddings, settings: Evaluation) -> None:
    """Recall, R-precision and MAP@R by Euclidean and, for a hyperbolic loss, Poincare distance.

    Both need the norm of the raw embedding, which is the concentration under uncertainty "norm". On the unit ball the
    embedding z has radius tanh(sqrt(c) |z|); scaling the ball changes no rank.
    """
    if test.metadata.get("uncertainty") != "norm" or "concentration" not in test.tensors:
        return
    mean, norm = test["mean"].astype(np.float64), test["concentration"].astype(np.float64)
    rows: dict[Literal["euclidean", "poincare"], NDArray[np.float64]] = {"euclidean": norm[:, None] * mean}
    if "curvature" in test.metadata:
        radius = np.tanh(math.sqrt(float(test.metadata["curvature"])) * norm).clip(max=_LARGEST_RADIUS)
        rows["poincare"] = radius[:, None] * mean
    kept = [f"recall_at_{k}" for k in settings.ks] + ["r_precision", "map_at_r"]
    for space, points in rows.items():
        values = summarize(retrieval_per_query(points, test["label"], ks=settings.ks, distance=space))
        found.add(f"retrieval_{space}", {name: values[name] for name in kept})


def _sampled(found: Found, test: Embeddings, settings: Evaluation) -> None:
    """Calibration of the votes of an image's samples, and retrieval by single samples."""
    confidence, correct = retrieval_votes(test["samples"], test["label"])
    calibration, votes = vote_reliability(confidence, correct)
    found.add("calibration", calibration)
    found.add_diagram("retrieval_reliability", votes)
    found.errors["calibration/retrieval_ece"] = resampled(
        lambda rows: vote_reliability(confidence[rows], correct[rows])[1].error("l1"), len(correct)
    )
    drawn = sampled_retrieval_metrics(test["samples"][:, :SAMPLED_SETS], test["label"], ks=settings.ks)
    found.add("retrieval_sampled", drawn)


def _selective(found: Found, test: Embeddings, queries: PerQuery, answers: Answers) -> None:
    """Sparsification, and what single images contribute to the metrics of all."""
    metrics, found.curves["sparsification"] = selective(test, queries, answers)
    found.add("sparsification", metrics)
    curves, errors = image_curves(queries, queries["positives"] > 0, test["uncertainty"])
    found.curves |= curves
    found.errors |= errors


def _columns(test: Embeddings) -> NDArray[np.int64] | None:
    """Column of each image's class in `probabilities`, or None where an image is of no class that has a column.

    Metadata "classes" (JSON list) names the manifest label of each column; without it column c is label c.
    """
    if "probabilities" not in test.tensors:
        return None
    width = test["probabilities"].shape[1]
    classes = np.asarray(json.loads(test.metadata.get("classes", json.dumps(list(range(width))))), dtype=np.int64)
    order = np.argsort(classes)
    place = np.searchsorted(classes[order], test["label"]).clip(max=width - 1)
    columns = order[place]
    return columns if np.array_equal(classes[columns], test["label"]) else None


def _classification(found: Found, test: Embeddings, columns: NDArray[np.int64], settings: Evaluation) -> None:
    """Metrics of the class probabilities (`columns`: each image's class), their diagram and errors over the images."""
    probabilities = test["probabilities"]
    confidence = np.minimum(probabilities.max(axis=1), 1.0)
    correct = probabilities.argmax(axis=1) == columns
    values = classification_metrics(probabilities, columns, bins=settings.calibration_bins)
    if 0 < np.count_nonzero(correct) < len(correct):
        values["error_auroc"] = auroc(test["uncertainty"][correct], test["uncertainty"][~correct])
    for name, value in values.items():
        found.add("calibration" if name.startswith("ece") else "classification", {name: value})
    found.add_diagram("reliability", reliability(confidence, correct, bins=settings.calibration_bins))
    binned = EqualMass(confidence, settings.calibration_bins)
    found.errors |= {
        "classification/accuracy": mean_error(correct),
        "classification/error_auroc": error_of_auroc(test["uncertainty"], ~correct),
        "calibration/ece": resampled(lambda rows: binned.reliability(correct, rows).error("l1"), len(correct)),
    }
