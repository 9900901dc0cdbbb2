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
distortions do to the answers (`metrics.severity`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probmetric.config import Evaluation
from probmetric.io import present
from probmetric.metrics import find, own_metrics
from probmetric.metrics.calibration import reliability
from probmetric.metrics.correlation import spearman
from probmetric.metrics.severity import by_severity
from probmetric.metrics.verification import Pairs, error_versus_discard, verification_metrics
from probmetric.retrieval.measures import summarize
from probmetric.runs.evaluate_answers import run_answers
from probmetric.runs.evaluate_places import Places, place_metrics, place_retrieval
from probmetric.runs.evaluate_splits import (
    Curves,
    Found,
    evaluate_ood,
    evaluate_test,
    per_query,
    selective,
)
from probmetric.runs.folder import Embeddings, RunFolder, Split
from probmetric.trust.answers import Answers, trust_metrics
from probmetric.trust.truth import Truth, truth_metrics

Metrics = dict[str, float | None]
PosteriorOf = Callable[[NDArray[np.int64]], tuple[NDArray[np.float64], NDArray[np.int64]]]
Distortions = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Known:
    """What is known of the images of a dataset beside their classes.

    Attributes:
        distortions: name -> (rows of the manifest,) strength of a distortion, looked up by each image's `index`; NaN =
            not known. `distortion` is that of all together.
        pairs: pairs of test images to verify, `verification/...`.
        places: where the images were taken, for street scenes: retrieval and sparsification are then as in `places`.
        posterior: manifest rows (n,) of one split -> exact P(class | image) (n, C) and labels (C,), where it is known.
    """

    distortions: Distortions = field(default_factory=dict)
    pairs: Pairs | None = None
    places: Places | None = None
    posterior: PosteriorOf | None = None


def evaluate_run(
    folder: Path | str,
    settings: Evaluation | None = None,
    known: Known | None = None,
    *,
    answers: Mapping[str, Answers] | None = None,
) -> tuple[Metrics, Curves]:
    """Return metrics (flat, NaN as None) and curves of the run in `folder`; as `RunFolder` keeps them.

    Args:
        folder: run folder with embeddings of `test` and, optionally, `val`, `last` and `ood`.
        settings: what to measure.
        known: what is known of the images.
        answers: `run_answers` of the run, where they are at hand; with the same `ks` their retrieval metrics serve too.

    Raises:
        UnknownNameError: a metric without a record in `probmetric.metrics`, which would have no direction.
        MetricError: a metric of the user's failed.
    """
    settings, known = settings or Evaluation(), known or Known()
    run = RunFolder(folder)
    test, places = run.embeddings("test"), known.places
    if places is not None:
        answers = {}
        found = Found(*place_metrics(test["mean"], test["uncertainty"], places.of(test["index"]), ks=settings.ks))
    else:
        answers = run_answers(run, settings.ks) if answers is None else answers
        found = _trusted(test, settings, answers, known.distortions)
    if known.pairs is not None:
        found.add("verification", _verification(test, known.pairs))
    if "distortion" in known.distortions:
        found.metrics |= _distortion(test, known.distortions["distortion"])
    _other_splits(found, run, places, settings, answers.get("val"))
    if present(run.embeddings_file("ood")):
        found.merge(evaluate_ood(test, run.embeddings("ood"), answers))
    if known.posterior is not None and "test" in answers:
        found.metrics |= truth_metrics(answers["test"], Truth(*known.posterior(test["index"])))
    found.metrics |= own_metrics(test.tensors)
    for name in found.metrics:
        find(name)
    return {name: _json_number(value) for name, value in found.metrics.items()}, found.all_curves()


def _trusted(test: Embeddings, settings: Evaluation, answers: Mapping[str, Answers], distortions: Distortions) -> Found:
    """The test split, and how far its answers can be trusted."""
    found = evaluate_test(test, settings, answers.get("test"))
    trust, stated = trust_metrics(answers)
    found.metrics |= trust
    if stated is not None:
        found.add_diagram("p_right", reliability(stated, answers["test"].right[answers["test"].asked]))
    if "test" in answers:
        found.curves |= _severities(test, distortions, answers["test"], stated)
    return found


def _verification(test: Embeddings, pairs: Pairs) -> dict[str, float]:
    similarity = pairs.similarities(test["mean"], test["index"])
    doubt = pairs.doubt(test["uncertainty"], test["index"])
    return verification_metrics(similarity, pairs.same) | {"edc": error_versus_discard(similarity, pairs.same, doubt)}


def _distortion(test: Embeddings, strength: NDArray[np.float64]) -> dict[str, float]:
    strengths = strength[test["index"]]
    finite = np.isfinite(strengths)
    return {"distortion/spearman": spearman(test["uncertainty"][finite], strengths[finite])} if finite.any() else {}


def _severities(
    test: Embeddings,
    distortions: Distortions,
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
    found: Found, run: RunFolder, places: Places | None, settings: Evaluation, answers: Answers | None
) -> None:
    """Retrieval of the validation split and with the last weights; sparsification of the validation split."""
    others: tuple[Split, ...] = ("val", "last")
    for split in others:
        if present(run.embeddings_file(split)):
            other, answered = run.embeddings(split), answers if split == "val" else None
            found.add(f"{split}/retrieval", _retrieval(other, places, settings, answered))
            if split == "val":
                found.add("val/sparsification", _selection(other, places, settings, answered))


def _retrieval(
    split: Embeddings, places: Places | None, settings: Evaluation, answers: Answers | None
) -> dict[str, float]:
    """Retrieval metrics of a split other than test."""
    if places is None:
        return summarize(per_query(split, settings.ks, answers))
    values, _, _ = place_retrieval(split["mean"], places.of(split["index"]), ks=settings.ks)
    return summarize(values) if values else {}


def _selection(
    val: Embeddings, places: Places | None, settings: Evaluation, answers: Answers | None
) -> dict[str, float]:
    """Selective metrics of the validation split."""
    if places is not None:
        values, _ = place_metrics(val["mean"], val["uncertainty"], places.of(val["index"]), ks=settings.ks)
        group = "sparsification/"
        return {name.removeprefix(group): value for name, value in values.items() if name.startswith(group)}
    queries = per_query(val, (1,), answers)
    if answers is None or not np.any(queries["positives"] > 0):
        return {}
    return selective(val, queries, answers)[0]


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
