"""Compute the metrics and curves of a run from the embeddings files in its folder.

This module reads the run's embeddings, calls the pure functions of `metrics`, `retrieval` and `trust`, and names the
results. Metric names are legal in MLflow and DVC.

    test  retrieval/..., clustering/..., structure/..., threshold/..., sparsification/...; classification/... and
          calibration/ece... if the file holds probabilities for the classes of its images;
          calibration/retrieval_ece and retrieval_sampled/... (mean over ten sampled sets) if it holds samples;
          distortion/spearman if the strength of the images' distortion is known; retrieval_euclidean/... of the
          embeddings before normalisation if the concentration is their norm, retrieval_poincare/... if metadata
          name a curvature
    ood   ood/<name>/..., each set against the test split
          both come also for scores of the answer: sparsification/error_auroc_cosine, ood/<name>/auroc_cosine, ...
          trust/...  what the method adds to the free scores; p_right/...  P(right), cross-fitted over classes
    val   val/retrieval/...    validation split, on which the model was selected; val/sparsification/...
    last  last/retrieval/...   test split with the last epoch's weights, next to the validation-selected ones

For its statistics a report regards the test classes as a sample (or the test images, if their classes are training
classes). So the curves hold `units/<metric>`, the contributions of single units with their labels; `unit_errors`, the
standard error of a metric over the units (`metrics.units`); and `severity/<distortion>`, the answers under stronger
distortions (`metrics.severity`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probmetric.config import ConfigError, Evaluation, RunSettings
from probmetric.data.exact import split_posterior
from probmetric.data.manifest import read_table, values_of, verify_digest
from probmetric.data.places import COLUMNS, WALKS
from probmetric.io import present
from probmetric.metrics import find, own_metrics, proxy_transport
from probmetric.metrics.arrays import Bools, Doubles, Ints
from probmetric.metrics.calibration import EqualMass, Reliability, reliability
from probmetric.metrics.classification import classification_metrics
from probmetric.metrics.clustering import clustering_metrics
from probmetric.metrics.correlation import spearman
from probmetric.metrics.ood import UNANSWERABLE, auroc, ood_metrics, roc_curve
from probmetric.metrics.ranked import metric_names
from probmetric.metrics.selective import selective_metrics, sparsification
from probmetric.metrics.severity import STRENGTHS, by_severity
from probmetric.metrics.structure import singular_values, structure_metrics
from probmetric.metrics.threshold import threshold_metrics
from probmetric.metrics.units import ByUnit, Images, mean_of, of_mean, resampled, retrieval_units, two_groups
from probmetric.metrics.verification import Pairs, error_versus_discard, verification_metrics
from probmetric.retrieval.measures import summarize
from probmetric.retrieval.problem import JUNK
from probmetric.retrieval.votes import retrieval_votes, sampled_retrieval_metrics, vote_reliability, with_partner
from probmetric.runs.folder import Embeddings, RunFolder, Split
from probmetric.runs.places import SUBTASKS, Places
from probmetric.runs.roles import Asked, Roles
from probmetric.trust.answers import (
    KEPT,
    LEAST,
    Answers,
    asked_in,
    error_aurocs,
    stranger_aurocs,
    trust_metrics,
)
from probmetric.trust.truth import Truth, truth_metrics

Metrics = dict[str, float | None]
Curves = dict[str, dict[str, list[float]]]
PerQuery = dict[str, Doubles]
Distortions = Mapping[str, Doubles]
Unit = Literal["class", "image", "walk"]

SAMPLED_SETS = 10
CURVE_POINTS = 200
_LARGEST_RADIUS = 1.0 - 1e-3


@dataclass(frozen=True)
class ImageFacts:
    """Facts of a dataset about its images, other than their classes.

    Attributes:
        distortions: name -> (rows of the manifest,) strength of a distortion, looked up by each image's `index`; NaN =
            not measured. `distortion` is the strength of all distortions together.
        pairs: pairs of test images to verify, `verification/...`.
        places: where the images were taken, for street scenes: queries are then answered as in `places`.
        posterior: manifest rows (n,) of one split -> exact P(class | image) (n, C) and labels (C,), if it is known.
        roles: which test images are queries and which their gallery, if the dataset names them.
        unit: the unit of sampling in the statistics: test classes, images of training classes, or walks along streets.
    """

    distortions: Distortions = field(default_factory=dict)
    pairs: Pairs | None = None
    places: Places | None = None
    posterior: Callable[[Ints], tuple[Doubles, Ints]] | None = None
    roles: Roles | None = None
    unit: Unit = "class"

    @classmethod
    def of(cls, folder: Path) -> ImageFacts:
        """Read the facts from the manifest of a prepared dataset."""
        verify_digest(folder)
        optional = (*STRENGTHS, "true_probability", *COLUMNS, *WALKS, "group")
        table, metadata = read_table(folder, ["split"], optional=optional)
        columns = {name: values_of(table, name) for name in table.column_names}
        strengths = {name: columns[name] for name in STRENGTHS if name in columns}
        pairs = np.array(metadata["pairs"], dtype=np.int64) if metadata.get("pairs") else None
        places = Places.in_manifest(columns)
        return cls(
            distortions={name: values for name, values in strengths.items() if values.dtype.kind == "f"},
            pairs=None if pairs is None else Pairs(pairs[:, :2], pairs[:, 2].astype(bool)),
            places=places,
            posterior=functools.partial(split_posterior, folder) if "true_probability" in columns else None,
            roles=None if places else Roles.of(columns),
            unit=_unit(str(metadata.get("protocol")), places),
        )

    def asked(self, split: Embeddings, *, tested: bool = True) -> Asked:
        """Return the queries of a split and the images searched.

        Only `tested` images have the roles query and gallery; at places validation images have them, too.
        """
        if self.places is not None:
            return self.places.asked(split["index"])
        if tested and self.roles is not None:
            return self.roles.among(split["index"], split["label"])
        return Asked.everyone(len(split["mean"]))

    def units(self, split: Embeddings) -> Ints:
        """Return the unit (N,) of each image of a split."""
        if self.unit == "class":
            return split["label"]
        walks = None if self.places is None else self.places.walks
        return split["index"] if walks is None else walks[split["index"]]


def _unit(protocol: str, places: Places | None) -> Unit:
    """Return the unit of sampling, by the dataset's protocol and the places of its images."""
    if places is not None:
        return "image" if places.walks is None else "walk"
    return "image" if protocol == "closed_set" else "class"


@dataclass
class Results:
    """Metrics by name, curves by name, and the contributions of the `units` (N,) of the test images."""

    by_unit: ByUnit
    units: Ints
    metrics: dict[str, float] = field(default_factory=dict)
    curves: Curves = field(default_factory=dict)

    def add(self, group: str, values: Mapping[str, float]) -> None:
        """Add metrics `<group>/<name>`."""
        self.metrics |= {f"{group}/{name}": value for name, value in values.items()}

    def add_diagram(self, name: str, diagram: Reliability) -> None:
        """Add a reliability diagram as a curve."""
        self.curves[name] = {part: getattr(diagram, part).tolist() for part in ("confidence", "accuracy", "count")}

    def merge(self, other: Results) -> None:
        """Add all results of `other`."""
        self.metrics |= other.metrics
        self.curves |= other.curves
        self.by_unit.merge(other.by_unit)


def evaluate_run(
    folder: Path | str,
    settings: Evaluation | None = None,
    facts: ImageFacts | None = None,
    *,
    answers: Mapping[str, Answers] | None = None,
) -> tuple[Metrics, Curves]:
    """Return metrics (flat, NaN as None) and curves of the run in `folder`, in the form that `RunFolder` stores.

    Args:
        folder: run folder with embeddings of `test` and, optionally, `val`, `last` and `ood`.
        settings: what to measure.
        facts: facts of the dataset about the images.
        answers: `run_answers` of the run, if available; with the same `ks` their retrieval metrics are reused.

    Raises:
        UnknownNameError: a metric has no record in `probmetric.metrics`, which states whether more is better.
        MetricError: a user's metric failed.
    """
    settings, facts = settings or Evaluation(), facts or ImageFacts()
    run = RunFolder(folder)
    test = run.embeddings("test")
    answers = run_answers(run, settings.ks, facts) if answers is None else answers
    results = answer_metrics(test, settings, answers.get("test"), facts)
    if facts.places is not None:
        _subtasks(results, test, facts.places, settings)
    else:
        if settings.clustering:
            results.add("clustering", clustering_metrics(test["mean"], test["label"], seed=settings.seed))
        results.add("structure", structure_metrics(test["mean"], test["label"]))
        results.add("threshold", threshold_metrics(test["mean"], test["label"], seed=settings.seed))
    _trusted(results, test, answers, facts)
    if facts.pairs is not None:
        results.add("verification", _verification(test, facts.pairs))
    if "distortion" in facts.distortions:
        results.metrics |= _distortion(test, facts.distortions["distortion"])
    _other_splits(results, run, facts, settings, answers.get("val"))
    if present(run.embeddings_file("ood")) and len(test["mean"]):
        results.merge(evaluate_ood(test, run.embeddings("ood"), answers, facts))
    if facts.posterior is not None and "test" in answers:
        results.metrics |= truth_metrics(answers["test"], Truth(*facts.posterior(test["index"])))
    results.metrics |= own_metrics(test.tensors)
    for name in results.metrics:
        find(name)
    metrics = {name: value if math.isfinite(value) else None for name, value in results.metrics.items()}
    return metrics, results.curves | results.by_unit.curves()


def _subtasks(results: Results, test: Embeddings, places: Places, settings: Evaluation) -> None:
    """Add retrieval with day queries among night images, and the reverse, if a query has an answer."""
    for task in SUBTASKS:
        queries = places.asked(test["index"], task).per_query(test["mean"], test["label"], settings.ks)
        if queries and np.any(queries["positives"] > 0):
            results.add(f"retrieval_{task}", summarize(queries))


def _trusted(results: Results, test: Embeddings, answers: Mapping[str, Answers], facts: ImageFacts) -> None:
    """Add how far the test split's answers can be trusted."""
    trust, stated = trust_metrics(answers)
    results.metrics |= trust
    if stated is not None:
        results.add_diagram("p_right", reliability(stated, answers["test"].right[answers["test"].asked]))
    if "test" in answers:
        rows = facts.asked(test).queries
        results.curves |= _severities(test["index"][rows], facts.distortions, answers["test"], stated)
        if facts.places is None:
            _add_strangers_within(results, answers["test"], results.units[rows])


def _add_strangers_within(results: Results, answers: Answers, units: Ints) -> None:
    """Add how well queries (Q,) without a right answer in the gallery are detected: `ood/unanswerable/...`."""
    alone, group = answers.rows(~answers.asked), f"ood/{UNANSWERABLE}"
    if not LEAST <= len(alone.own) <= len(answers.own) - LEAST:
        return
    answerable = answers.rows(answers.asked)
    results.add(group, ood_metrics(answerable.own, alone.own) | stranger_aurocs(answerable, alone))
    answered = Images.of(answers.own, units, answers.asked)
    results.by_unit.add_auroc(f"{group}/auroc", answered, Images.of(answers.own, units, ~answers.asked))


def _verification(test: Embeddings, pairs: Pairs) -> dict[str, float]:
    similarity = pairs.similarities(test["mean"], test["index"])
    doubt = pairs.doubt(test["uncertainty"], test["index"])
    return verification_metrics(similarity, pairs.same) | {"edc": error_versus_discard(similarity, pairs.same, doubt)}


def _distortion(test: Embeddings, strength: Doubles) -> dict[str, float]:
    strengths = strength[test["index"]]
    finite = np.isfinite(strengths)
    return {"distortion/spearman": spearman(test["uncertainty"][finite], strengths[finite])} if finite.any() else {}


def _severities(
    index: Ints,
    distortions: Distortions,
    answers: Answers,
    stated: Doubles | None,
) -> Curves:
    queries = answers.asked
    rows, right, doubt = index[queries], answers.right[queries], answers.own[queries]
    if not len(rows):
        return {}
    curves = {
        f"severity/{name}": by_severity(values[rows], right, doubt, stated) for name, values in distortions.items()
    }
    return {name: curve for name, curve in curves.items() if curve}


def _other_splits(
    results: Results, run: RunFolder, facts: ImageFacts, settings: Evaluation, answers: Answers | None
) -> None:
    """Add retrieval of the validation split and with the last weights, and sparsification of the validation split."""
    others: tuple[Split, ...] = ("val", "last")
    for split in others:
        if not present(run.embeddings_file(split)) or not len(run.embeddings(split)["mean"]):
            continue
        other, answered = run.embeddings(split), answers if split == "val" else None
        sides = facts.asked(other, tested=split == "last")
        if queries := per_query(other, settings.ks, answered, sides):
            results.add(f"{split}/retrieval", summarize(queries))
        if answered is not None and answered.asked.any():
            results.add("val/sparsification", selective(per_query(other, (1,), answered, sides), answered)[0])


def run_answers(run: RunFolder, ks: Sequence[int] = (), facts: ImageFacts | None = None) -> dict[str, Answers]:
    """Return the answers of a run for each set of queries; a set without images is left out.

    test         each test image asked among the others, or each query in the gallery (`runs.roles`, `runs.places`)
    val          each validation image asked among the others, queries for a place in their database: a smaller
                 gallery, of other classes
    ood/<name>   strangers, asked among the test images or in the gallery; every answer is wrong

    `ks` are the cutoffs of the retrieval metrics that are computed with the answers (see `among_others`).
    """
    test = run.embeddings("test")
    facts = facts or ImageFacts()
    sides = facts.asked(test)
    answers = {"test": sides.answers(test.tensors, test["label"], ks)}
    if run.holds("val", "mean"):
        val = run.embeddings("val")
        answers["val"] = facts.asked(val, tested=False).answers(val.tensors, val["label"], ks)
    if run.holds("ood", "mean") and len(sides.gallery) >= LEAST:
        strangers, searched = run.embeddings("ood"), np.full_like(test["label"], JUNK)
        searched[sides.gallery] = test["label"][sides.gallery]
        for name, rows in ood_rows(strangers).items():
            record = {key: values[rows] for key, values in strangers.tensors.items() if key in KEPT}
            answers[f"ood/{name}"] = asked_in(record, np.full(rows.sum(), -1), test.tensors, searched)
    return {name: each for name, each in answers.items() if each is not None}


def answers_among_others(split: Embeddings, ks: Sequence[int] = ()) -> Answers | None:
    """Return the answers to every image of a split asked among the others; None with fewer than two images.

    `ks` as in `among_others`.
    """
    return Asked.everyone(len(split["mean"])).answers(split.tensors, split["label"], ks)


def ood_rows(strangers: Embeddings) -> dict[str, Bools]:
    """Return the rows (N,) of an embeddings file for each out-of-distribution set that has images."""
    names = strangers.said("sources", list[str], ["ood"])
    source = strangers.tensors.get("source", np.zeros(len(strangers["uncertainty"]), dtype=np.int64))
    rows = {name: source == number for number, name in enumerate(names)}
    return {name: chosen for name, chosen in rows.items() if chosen.any()}


def answer_metrics(
    test: Embeddings, settings: Evaluation, answers: Answers | None, facts: ImageFacts | None = None
) -> Results:
    """Return the metrics of the answers to a split's images: retrieval, selective answers, samples, classification."""
    facts = facts or ImageFacts()
    sides = facts.asked(test)
    queries = per_query(test, tuple(dict.fromkeys((1, *settings.ks))), answers, sides)
    results = Results(ByUnit(facts.unit), facts.units(test))
    if not queries:
        return results
    results.add("retrieval", summarize(queries))
    if facts.places is None:
        _other_spaces(results, test, settings, sides)
    if np.any(queries["positives"] > 0):
        if "samples" in test.tensors and sides.among_others:
            _sampled(results, test, settings)
        if answers is not None:
            _selective(results, queries, answers, results.units[sides.queries])
    columns = _columns(test)
    if columns is not None:
        _classification(results, test, columns, settings)
    return results


def evaluate_ood(test: Embeddings, ood: Embeddings, answers: Mapping[str, Answers], facts: ImageFacts) -> Results:
    """Return detection metrics and ROC curve of each set in `ood` against the test split, and the means over the sets.

    A set without images is left out. `answers` as in `evaluate_run`. Strangers have no known class, so each is a unit
    of its own, numbered -1, -2, ...
    """
    sets = ood_rows(ood)
    results = Results(ByUnit(facts.unit), facts.units(test))
    tested = Images.of(test["uncertainty"], results.units)
    strangers = Images(ood["uncertainty"].astype(np.float64), -1 - np.arange(len(ood["uncertainty"])))
    for name, rows in sets.items():
        doubt = ood["uncertainty"][rows]
        results.add(f"ood/{name}", ood_metrics(test["uncertainty"], doubt))
        rates = roc_curve(test["uncertainty"], doubt, points=CURVE_POINTS)
        results.curves[f"roc/{name}"] = {key: values.tolist() for key, values in rates.items()}
        results.by_unit.add_auroc(f"ood/{name}/auroc", tested, Images(strangers.values[rows], strangers.units[rows]))
        if "test" in answers and f"ood/{name}" in answers:
            results.add(f"ood/{name}", stranger_aurocs(answers["test"], answers[f"ood/{name}"]))
    if sets:
        kinds = ("auroc", "auprc", "fpr_at_95")
        means = {kind: np.mean([results.metrics[f"ood/{name}/{kind}"] for name in sets]) for kind in kinds}
        results.add("ood", {kind: float(value) for kind, value in means.items()})
        parts = [results.by_unit.contributions.get(f"ood/{name}/auroc") for name in sets]
        complete = [part for part in parts if part is not None]
        if len(complete) == len(parts):
            results.by_unit.add("ood/auroc", mean_of(complete))
    return results


def per_query(split: Embeddings, ks: tuple[int, ...], answers: Answers | None, sides: Asked) -> PerQuery:
    """Return retrieval metrics of each query of a split; read them from its answers if these have all cutoffs."""
    listed = {} if answers is None else answers.retrieval
    names = [*metric_names(ks), "positives"]
    if all(name in listed for name in names):
        return {name: listed[name] for name in names}
    return sides.per_query(split["mean"], split["label"], ks)


def selective(queries: PerQuery, answers: Answers) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return selective metrics by the query's uncertainty, and AUSC by the mean of query's and neighbour's (003).

    Returns:
        Metrics, and the sparsification curve by the query's own uncertainty.
    """
    answerable = queries["positives"] > 0
    correct, doubt = queries["recall_at_1"], answers.own
    pair = (doubt + answers.match.answer["uncertainty"].astype(np.float64)) / 2
    curve, _ = sparsification(doubt[answerable], correct[answerable])
    metrics = selective_metrics(doubt[answerable], correct[answerable])
    metrics |= {f"error_auroc_{score}": value for score, value in error_aurocs(answers).items()}
    metrics["ausc_query_and_neighbour"] = sparsification(pair[answerable], correct[answerable])[1]
    metrics["ausc_as_published"] = sparsification(pair[answerable], correct[answerable], scaling="as_published")[1]
    metrics["ausc_as_published_empty_as_zero"] = sparsification(pair, correct, scaling="as_published")[1]
    return metrics, {"removed": curve.removed.tolist(), "accuracy": curve.accuracy.tolist()}


def _other_spaces(results: Results, test: Embeddings, settings: Evaluation, sides: Asked) -> None:
    """Add recall, R-precision and MAP@R by Euclidean and, for a hyperbolic loss, Poincare distance.

    Both need the norm of the raw embedding, which is the concentration under uncertainty "norm". On the unit ball the
    embedding z has radius tanh(sqrt(c) |z|); scaling the ball changes no rank.
    """
    if test.metadata.get("uncertainty") != "norm" or "concentration" not in test.tensors:
        return
    mean, norm = test["mean"].astype(np.float64), test["concentration"].astype(np.float64)
    rows: dict[Literal["euclidean", "poincare"], Doubles] = {"euclidean": norm[:, None] * mean}
    curvature = test.said("curvature", float, None)
    if curvature is not None:
        radius = np.tanh(math.sqrt(curvature) * norm).clip(max=_LARGEST_RADIUS)
        rows["poincare"] = radius[:, None] * mean
    kept = [f"recall_at_{k}" for k in settings.ks] + ["r_precision", "map_at_r"]
    for space, points in rows.items():
        values = summarize(sides.per_query(points, test["label"], settings.ks, distance=space))
        results.add(f"retrieval_{space}", {name: values[name] for name in kept})


def _sampled(results: Results, test: Embeddings, settings: Evaluation) -> None:
    """Add the calibration of the votes of each image's samples, and retrieval by single samples."""
    confidence, correct = retrieval_votes(test["samples"], test["label"])
    calibration, votes = vote_reliability(confidence, correct)
    results.add("calibration", calibration)
    results.add_diagram("retrieval_reliability", votes)
    units = results.units[with_partner(test["label"])]
    error = resampled(lambda rows: vote_reliability(confidence[rows], correct[rows])[1].error("l1"), units)
    results.by_unit.add_error("calibration/retrieval_ece", error, len(np.unique(units)))
    drawn = sampled_retrieval_metrics(test["samples"][:, :SAMPLED_SETS], test["label"], ks=settings.ks)
    results.add("retrieval_sampled", drawn)


def _selective(results: Results, queries: PerQuery, answers: Answers, units: Ints) -> None:
    """Add sparsification, and the contributions of single `units` (Q,) of the queries to the metrics."""
    metrics, results.curves["sparsification"] = selective(queries, answers)
    results.add("sparsification", metrics)
    doubt = Images.of(answers.own, units)
    results.by_unit.merge(retrieval_units(queries, queries["positives"] > 0, doubt, results.by_unit.unit))


def _columns(test: Embeddings) -> Ints | None:
    """Return each image's column in `probabilities`, or None if the class of an image has no column.

    Metadata "classes" (JSON list) names the manifest label of each column; without it column c is label c.
    """
    if "probabilities" not in test.tensors:
        return None
    width = test["probabilities"].shape[1]
    classes = np.array(test.said("classes", list[int], range(width)), dtype=np.int64)
    order = np.argsort(classes)
    place = np.searchsorted(classes[order], test["label"]).clip(max=width - 1)
    columns = order[place]
    return columns if np.array_equal(classes[columns], test["label"]) else None


def _classification(results: Results, test: Embeddings, columns: Ints, settings: Evaluation) -> None:
    """Add metrics of the class probabilities (`columns`: each image's class), their diagram and their errors."""
    probabilities = test["probabilities"]
    confidence = np.minimum(probabilities.max(axis=1), 1.0)
    correct = probabilities.argmax(axis=1) == columns
    values = classification_metrics(probabilities, columns, bins=settings.calibration_bins)
    if 0 < np.count_nonzero(correct) < len(correct):
        values["error_auroc"] = auroc(test["uncertainty"][correct], test["uncertainty"][~correct])
    for name, value in values.items():
        results.add("calibration" if name.startswith("ece") else "classification", {name: value})
    results.add_diagram("reliability", reliability(confidence, correct, bins=settings.calibration_bins))
    units, binned = results.units, EqualMass(confidence, settings.calibration_bins)
    results.by_unit.add("classification/accuracy", of_mean(Images.of(correct, units)))
    doubt = Images.of(test["uncertainty"], units)
    results.by_unit.add_auroc("classification/error_auroc", *two_groups(doubt, correct, ~correct))
    error = resampled(lambda rows: binned.reliability(correct, rows).error("l1"), units)
    results.by_unit.add_error("calibration/ece", error, len(np.unique(units)))


def training_metrics(
    settings: RunSettings,
    rows: NDArray[np.floating],
    labels: Ints,
    proxies: tuple[NDArray[np.floating], Ints] | None,
) -> tuple[dict[str, float], Curves]:
    """Return the metrics and curves of the training images.

    `train/structure/...` with the curve `train/singular_values` (papers 000 and 001); `structure/proxy_w1` and
    `proxy_w2`, how near the loss's proxies are (paper 004).

    Args:
        settings: the run's settings.
        rows: unit embeddings (N, M) of the training images.
        labels: their classes (N,), numbered as in the loss.
        proxies: the loss's proxies (P, M) and the class (P,) of each, if it has proxies.

    Raises:
        ConfigError: `evaluation.proxies` is set and the loss has no proxies.
    """
    metrics: dict[str, float] = {}
    curves: Curves = {}
    if settings.evaluation.training_images:
        curves["train/singular_values"] = {"value": singular_values(rows).tolist()}
        metrics |= {f"train/structure/{name}": value for name, value in structure_metrics(rows, labels).items()}
    if settings.evaluation.proxies:
        if proxies is None:
            raise ConfigError(
                f"evaluation.proxies: the loss of {settings.method} has no proxies; leave the setting out."
            )
        distances = proxy_transport(rows, labels, *proxies)
        metrics |= {f"structure/proxy_{name}": value for name, value in distances.items()}
    return metrics, curves
