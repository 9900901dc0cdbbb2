"""From the embeddings files of one run folder to its metrics and curves.

A thin shell around the pure functions of this package: reads the run's embeddings, calls them, and names the results.
Metric names are legal in MLflow and DVC. Nothing is written.

    test  retrieval/..., clustering/..., structure/..., sparsification/...; classification/... and calibration/ece...
          where the file holds class probabilities for the classes it shows; calibration/retrieval_ece and
          retrieval_sampled/... (mean over ten sampled sets) where it holds samples; distortion/spearman where it is
          known how strongly the images were distorted; retrieval_euclidean/... of the embeddings before normalisation
          where the concentration is their norm, retrieval_poincare/... where metadata names a curvature
    ood   ood/<name>/..., each set against the test split
          scores of the answer stand beside both: sparsification/error_auroc_cosine, ood/<name>/auroc_cosine, ...
          trust/...  what the method adds to the free ones; p_right/...  P(right), cross-fitted over classes
    val   val/retrieval/...    what model selection saw; val/sparsification/...
    last  last/retrieval/...   test split with the last epoch's weights, next to the validation-selected ones

Curves hold what a report needs to take the test images for a sample: `images/<metric>`, the values of single images,
and `image_errors`, the standard error of a metric over the images; and `severity/<distortion>`, what stronger
distortions do to the answers (`evaluation.severity`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probmetric.evaluation._rank_metrics import metric_names
from probmetric.evaluation.answers import (
    Answers,
    error_aurocs,
    ood_sets,
    ood_source,
    run_answers,
    stranger_aurocs,
    trust_metrics,
)
from probmetric.evaluation.calibration import EqualMass, Reliability, reliability
from probmetric.evaluation.classification import classification_metrics
from probmetric.evaluation.clustering import clustering_metrics
from probmetric.evaluation.correlation import spearman
from probmetric.evaluation.image_errors import (
    auroc_error,
    error_of_auroc,
    image_curves,
    known_errors,
    mean_error,
    resampled,
)
from probmetric.evaluation.ood import auroc, ood_metrics, roc_curve
from probmetric.evaluation.p_right import diagram
from probmetric.evaluation.places import Places, place_metrics, place_retrieval
from probmetric.evaluation.retrieval import retrieval_per_query, summarize
from probmetric.evaluation.sampled import retrieval_votes, sampled_retrieval_metrics, vote_reliability
from probmetric.evaluation.selective import selective_metrics, sparsification
from probmetric.evaluation.severity import by_severity
from probmetric.evaluation.structure import structure_metrics
from probmetric.evaluation.truth import Truth, truth_metrics
from probmetric.evaluation.verification import Pairs, error_versus_discard, verification_metrics
from probmetric.io import present
from probmetric.metrics import find, own_metrics
from probmetric.run_folder import Embeddings, RunFolder, Split

Metrics = dict[str, float | None]
PosteriorOf = Callable[[NDArray[np.int64]], tuple[NDArray[np.float64], NDArray[np.int64]]]
Curves = dict[str, dict[str, list[float]]]

SAMPLED_SETS = 10
_LARGEST_RADIUS = 1.0 - 1e-3


@dataclass(frozen=True)
class EvaluationSettings:
    """What to compute. `clusters` is the number of k-means clusters, by default that of the test classes."""

    ks: tuple[int, ...] = (1, 2, 4, 8)
    clusters: int | None = None
    clustering: bool = True
    structure: bool = True
    seed: int = 1234
    bins: int = 15
    curve_points: int = 200

    @classmethod
    def of(cls, settings: EvaluationSettings | Mapping[str, Any] | None) -> EvaluationSettings:
        """Settings from a mapping (unknown keys are an error) or None for the defaults."""
        if isinstance(settings, cls):
            return settings
        values = dict(settings or {})  # type: ignore[arg-type]
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                from probmetric.registry import nearest

                raise ValueError(f"evaluation settings have no key {key!r}: {nearest(key, known)}")
        if "ks" in values:
            values["ks"] = tuple(values["ks"])
        return cls(**values)


def evaluate_run(
    folder: Path | str,
    settings: EvaluationSettings | Mapping[str, Any] | None = None,
    *,
    distortions: Mapping[str, NDArray[np.float64]] | None = None,
    pairs: Pairs | None = None,
    places: Places | None = None,
    answers: Mapping[str, Answers] | None = None,
    posterior: PosteriorOf | None = None,
) -> tuple[Metrics, Curves]:
    """Metrics (flat, NaN as None) and curves of the run in `folder`; as `RunFolder` keeps them.

    Args:
        folder: run folder with embeddings of `test` and, optionally, `val`, `last` and `ood`.
        settings: `EvaluationSettings`, a mapping of its fields, or None.
        distortions: name -> (rows of the manifest,) strength of a distortion, looked up by each image's `index`; NaN =
            not known. `distortion` is that of all together.
        pairs: pairs of test images to verify, `verification/...`.
        places: where the images were taken, for street scenes: retrieval and sparsification are then as in `places`.
        answers: `run_answers` of the run, where they are at hand; with the same `ks` their retrieval metrics serve too.
        posterior: manifest rows (n,) of one split -> exact P(class | image) (n, C) and labels (C,), where it is known.

    Raises:
        UnknownNameError: a metric without a record in `probmetric.metrics`, which would have no direction.
        MetricError: a metric of the user's failed.
    """
    chosen = EvaluationSettings.of(settings)
    run = RunFolder(folder)
    test = run.embeddings("test")
    found = {} if places is not None else run_answers(run, chosen.ks) if answers is None else answers
    if places is None:
        metrics, curves = evaluate_test(test, chosen, found.get("test"))
        trust, stated = trust_metrics(found)
        metrics |= trust
        if stated is not None:
            curves["p_right"] = _diagram(diagram(stated, found["test"].right[found["test"].asked]))
        if "test" in found:
            curves |= _severities(test, distortions or {}, found["test"], stated)
    else:
        metrics, curves = place_metrics(test["mean"], test["uncertainty"], places.of(test["index"]), ks=chosen.ks)
    if pairs is not None:
        metrics |= _prefixed("verification", _verification(test, pairs))
    if distortions is not None and "distortion" in distortions:
        metrics |= _distortion(test, distortions["distortion"])
    metrics |= _other_splits(run, places, chosen, found.get("val"))
    if present(run.embeddings_file("ood")):
        detected, roc = evaluate_ood(test, run.embeddings("ood"), chosen, found)
        metrics |= detected
        errors = roc.pop("image_errors", {})
        curves |= roc
        curves.setdefault("image_errors", {}).update(errors)
    if posterior is not None and "test" in found:
        metrics |= truth_metrics(found["test"], Truth(*posterior(test["index"])))
    metrics |= own_metrics(test.tensors)
    for name in metrics:
        find(name)
    return {name: _json_number(value) for name, value in metrics.items()}, curves


def _verification(test: Embeddings, pairs: Pairs) -> dict[str, float]:
    similarity = pairs.similarities(test["mean"], test["index"])
    doubt = pairs.doubt(test["uncertainty"], test["index"])
    return verification_metrics(similarity, pairs.same) | {"edc": error_versus_discard(similarity, pairs.same, doubt)}


def _distortion(test: Embeddings, strength: NDArray[np.float64]) -> dict[str, float]:
    known = strength[test["index"]]
    given = np.isfinite(known)
    return {"distortion/spearman": spearman(test["uncertainty"][given], known[given])} if given.any() else {}


def _severities(
    test: Embeddings,
    distortions: Mapping[str, NDArray[np.float64]],
    answers: Answers,
    stated: NDArray[np.float64] | None,
) -> Curves:
    asked = answers.asked
    rows, right, own = test["index"][asked], answers.right[asked], answers.own[asked]
    if not len(rows):
        return {}
    found = {f"severity/{name}": by_severity(values[rows], right, own, stated) for name, values in distortions.items()}
    return {name: curve for name, curve in found.items() if curve}


def _other_splits(
    run: RunFolder, places: Places | None, settings: EvaluationSettings, answers: Answers | None
) -> dict[str, float]:
    """Retrieval of the validation split and with the last weights; sparsification of the validation split."""
    metrics: dict[str, float] = {}
    others: tuple[Split, ...] = ("val", "last")
    for split in others:
        if present(run.embeddings_file(split)):
            other = run.embeddings(split)
            metrics |= _prefixed(
                f"{split}/retrieval", _retrieval(other, places, settings, answers if split == "val" else None)
            )
            if split == "val":
                metrics |= _prefixed("val", _selection(other, places, settings, answers))
    return metrics


def _selection(
    val: Embeddings, places: Places | None, settings: EvaluationSettings, answers: Answers | None
) -> dict[str, float]:
    """`sparsification/...` of the validation split."""
    if places is not None:
        found, _ = place_metrics(val["mean"], val["uncertainty"], places.of(val["index"]), ks=settings.ks)
        return {name: value for name, value in found.items() if name.startswith("sparsification/")}
    per_query = _per_query(val, (1,), answers)
    if answers is None or not np.any(per_query["positives"] > 0):
        return {}
    return _prefixed("sparsification", _sparsification(val, per_query, answers)[0])


def evaluate_test(
    test: Embeddings, settings: EvaluationSettings, answers: Answers | None
) -> tuple[dict[str, float], Curves]:
    """Retrieval, clustering, sparsification and, where there are probabilities, classification of the test split."""
    per_query = _per_query(test, tuple(dict.fromkeys((1, *settings.ks))), answers)
    metrics = _prefixed("retrieval", summarize(per_query)) | _other_spaces(test, settings)
    curves: Curves = {}
    errors: dict[str, float] = {}
    if settings.clustering:
        found = clustering_metrics(test["mean"], test["label"], clusters=settings.clusters, seed=settings.seed)
        metrics |= _prefixed("clustering", found)
    if settings.structure:
        metrics |= _prefixed("structure", structure_metrics(test["mean"], test["label"]))
    if "samples" in test.tensors and np.any(per_query["positives"] > 0):
        confidence, correct = retrieval_votes(test["samples"], test["label"])
        found, votes = vote_reliability(confidence, correct)
        metrics |= _prefixed("calibration", found)
        errors["calibration/retrieval_ece"] = resampled(
            lambda rows: vote_reliability(confidence[rows], correct[rows])[1].error("l1"), len(correct)
        )
        drawn = sampled_retrieval_metrics(test["samples"][:, :SAMPLED_SETS], test["label"], ks=settings.ks)
        metrics |= _prefixed("retrieval_sampled", drawn)
        curves["retrieval_reliability"] = _diagram(votes)
    if answers is not None and np.any(per_query["positives"] > 0):
        found, curve = _sparsification(test, per_query, answers)
        metrics |= _prefixed("sparsification", found)
        curves["sparsification"] = curve
        asked = per_query["positives"] > 0
        kept, errors_of_images = image_curves(per_query, asked, test["uncertainty"])
        curves |= kept
        errors |= errors_of_images
    columns = _columns(test)
    if columns is not None:
        found, curve = _classification(test, columns, settings)
        metrics |= found
        curves["reliability"] = curve
        errors |= _classification_errors(test, columns, settings)
    if known := known_errors(errors):
        curves["image_errors"] = known
    return metrics, curves


def _per_query(split: Embeddings, ks: tuple[int, ...], answers: Answers | None) -> dict[str, NDArray[np.float64]]:
    """Retrieval metrics of each image of a split, read from its answers where these have all cutoffs."""
    known = {} if answers is None else answers.retrieval
    names = [*metric_names(ks), "positives"]
    if all(name in known for name in names):
        return {name: known[name] for name in names}
    return retrieval_per_query(split["mean"], split["label"], ks=ks)


def _retrieval(
    split: Embeddings, places: Places | None, settings: EvaluationSettings, answers: Answers | None
) -> dict[str, float]:
    """Retrieval metrics of a split other than test."""
    if places is None:
        return summarize(_per_query(split, settings.ks, answers))
    values, _, _ = place_retrieval(split["mean"], places.of(split["index"]), ks=settings.ks)
    return summarize(values) if values else {}


def evaluate_ood(
    test: Embeddings, ood: Embeddings, settings: EvaluationSettings, answers: Mapping[str, Answers]
) -> tuple[dict[str, float], Curves]:
    """Detection metrics and ROC curve of each set in `ood` against the test split, and the means over the sets.

    A set without images is left out.
    """
    source = ood_source(ood)
    names = [name for number, name in enumerate(ood_sets(ood)) if np.any(source == number)]
    numbers = {name: number for number, name in enumerate(ood_sets(ood))}
    metrics: dict[str, float] = {}
    curves: Curves = {}
    errors: dict[str, float] = {}
    for name in names:
        doubt = ood["uncertainty"][source == numbers[name]]
        metrics |= _prefixed(f"ood/{name}", ood_metrics(test["uncertainty"], doubt))
        rates = roc_curve(test["uncertainty"], doubt, points=settings.curve_points)
        curves[f"roc/{name}"] = {key: values.tolist() for key, values in rates.items()}
        errors[f"ood/{name}/auroc"] = auroc_error(test["uncertainty"], doubt)
        if "test" in answers and f"ood/{name}" in answers:
            metrics |= _prefixed(f"ood/{name}", stranger_aurocs(answers["test"], answers[f"ood/{name}"]))
    curves["image_errors"] = known_errors(errors)
    for kind in ("auroc", "auprc", "fpr_at_95"):
        if names:
            metrics[f"ood/{kind}"] = float(np.mean([metrics[f"ood/{name}/{kind}"] for name in names]))
    return metrics, curves


def _other_spaces(test: Embeddings, settings: EvaluationSettings) -> dict[str, float]:
    """Recall, R-precision and MAP@R by Euclidean and, for a hyperbolic loss, Poincare distance.

    Both need the norm of the raw embedding, which is the concentration under uncertainty "norm". On the unit ball the
    embedding z has radius tanh(sqrt(c) |z|); scaling the ball changes no rank.
    """
    if test.metadata.get("uncertainty") != "norm" or "concentration" not in test.tensors:
        return {}
    mean, norm = test["mean"].astype(np.float64), test["concentration"].astype(np.float64)
    rows: dict[Literal["euclidean", "poincare"], NDArray[np.float64]] = {"euclidean": norm[:, None] * mean}
    if "curvature" in test.metadata:
        radius = np.tanh(math.sqrt(float(test.metadata["curvature"])) * norm).clip(max=_LARGEST_RADIUS)
        rows["poincare"] = radius[:, None] * mean
    metrics: dict[str, float] = {}
    for space, points in rows.items():
        found = summarize(retrieval_per_query(points, test["label"], ks=settings.ks, distance=space))
        kept = [f"recall_at_{k}" for k in settings.ks] + ["r_precision", "map_at_r"]
        metrics |= _prefixed(f"retrieval_{space}", {name: found[name] for name in kept})
    return metrics


def _sparsification(
    test: Embeddings, per_query: dict[str, NDArray[np.float64]], answers: Answers
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Selective metrics with the query's own uncertainty, and AUSC with the mean of query's and neighbour's (003)."""
    asked = per_query["positives"] > 0
    correct, doubt = per_query["recall_at_1"][asked], test["uncertainty"].astype(np.float64)
    neighbour = answers.match.indices[:, 0]
    curve, _ = sparsification(doubt[asked], correct)
    pair = ((doubt + doubt[neighbour]) / 2)[asked]
    metrics = selective_metrics(doubt[asked], correct)
    metrics |= _prefixed_names("error_auroc_", error_aurocs(answers))
    metrics["ausc_query_and_neighbour"] = sparsification(pair, correct)[1]
    metrics["ausc_as_published"] = sparsification(pair, correct, scaling="as_published")[1]
    metrics["ausc_as_published_empty_as_zero"] = sparsification(
        (doubt + doubt[neighbour]) / 2, per_query["recall_at_1"], scaling="as_published"
    )[1]
    return metrics, {"removed": curve.removed.tolist(), "accuracy": curve.accuracy.tolist()}


def _classification_errors(
    test: Embeddings, columns: NDArray[np.int64], settings: EvaluationSettings
) -> dict[str, float]:
    """Standard errors over test images of what `_classification` measures."""
    binned = EqualMass(np.minimum(test["probabilities"].max(axis=1), 1.0), settings.bins)
    correct = test["probabilities"].argmax(axis=1) == columns
    return {
        "classification/accuracy": mean_error(correct),
        "classification/error_auroc": error_of_auroc(test["uncertainty"], ~correct),
        "calibration/ece": resampled(lambda rows: binned.reliability(correct, rows).error("l1"), len(correct)),
    }


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


def _classification(
    test: Embeddings, columns: NDArray[np.int64], settings: EvaluationSettings
) -> tuple[dict[str, float], dict[str, list[float]]]:
    probabilities = test["probabilities"]
    found = classification_metrics(probabilities, columns, bins=settings.bins)
    correct = probabilities.argmax(axis=1) == columns
    if 0 < np.count_nonzero(correct) < len(correct):
        found["error_auroc"] = auroc(test["uncertainty"][correct], test["uncertainty"][~correct])
    groups = {name: "calibration" if name.startswith("ece") else "classification" for name in found}
    diagram = reliability(np.minimum(probabilities.max(axis=1), 1.0), correct, bins=settings.bins)
    return {f"{groups[name]}/{name}": value for name, value in found.items()}, _diagram(diagram)


def _diagram(found: Reliability) -> dict[str, list[float]]:
    return {name: getattr(found, name).tolist() for name in ("confidence", "accuracy", "count")}


def _prefixed_names(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}{name}": value for name, value in values.items()}


def _prefixed(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return _prefixed_names(f"{prefix}/", values)


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
