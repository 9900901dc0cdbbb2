"""Which method to deploy: chosen on the validation images alone.

Frozen features are recommended unless a method is clearly better: a sign-flip test of MAP@R over the classes (images,
if test classes are training classes) says so at level 0.1, corrected for all methods, and recall@1 is not lower. Of
several such methods the best mean MAP@R decides. Images that are alone in their class are no queries.
`benchmarks/recommended.py` measures what this rule gains, and how often it loses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probmetric.config import ConfigError
from probmetric.metrics.arrays import Array, Doubles
from probmetric.metrics.statistics import sign_flip_test
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.results import unit_of
from probmetric.reporting.settings import frozen_baselines
from probmetric.retrieval.measures import retrieval_per_query
from probmetric.retrieval.votes import with_partner
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import override_items

LEVEL = 0.1


@dataclass(frozen=True)
class Candidate:
    """A method with finished runs on one dataset.

    Attributes:
        method: its name, with its overrides.
        values: MAP@R and recall@1 of each validation class or image (U, 2), means over seeds; a class that is in
            several splits counts once.
        frozen: whether the method is the frozen features, without training or fitting.
        by_image: whether the values are per image, not per class.
        runs: its finished runs, of several seeds and splits of the classes.
    """

    method: str
    values: Doubles
    frozen: bool
    by_image: bool = False
    runs: tuple[RunFolder, ...] = ()

    @property
    def means(self) -> tuple[float, float]:
        """Return MAP@R and recall@1, each the mean over the validation classes or images."""
        precision, recall = self.values.mean(axis=0)
        return float(precision), float(recall)

    @property
    def evidence(self) -> str:
        """Return the units that judge, such as "12 validation classes"."""
        return f"{len(self.values)} validation {'images' if self.by_image else 'classes'}"


def best(candidates: list[Candidate], level: float = LEVEL) -> Candidate:
    """Return the candidate to deploy: the best one that beats the frozen features at `level`, else the latter."""
    baseline = next((each for each in candidates if each.frozen), None)
    if baseline is None:
        return max(candidates, key=lambda each: each.means)
    others = [each for each in candidates if each is not baseline]
    if not others:
        return baseline
    p_values = sign_flip_test([each.values[:, 0] - baseline.values[:, 0] for each in others])
    better = [
        each for each, p in zip(others, p_values, strict=True) if p <= level and each.means[1] >= baseline.means[1]
    ]
    return max(better, key=lambda each: each.means, default=baseline)


def of_units(vectors: Any, labels: Any, *, by_image: bool = False) -> tuple[Array, Doubles]:
    """Return classes, or places of images, (U,) of images (N, M) asked among each other, and MAP@R, recall@1 (U, 2)."""
    values = retrieval_per_query(vectors, labels, ks=(1,), normalize=True)
    answered = values["positives"] > 0
    both, asking = np.stack([values["map_at_r"], values["recall_at_1"]], axis=1)[answered], labels[answered]
    if by_image:
        return np.arange(len(both)), both
    classes = np.unique(asking)
    return classes, np.stack([both[asking == label].mean(axis=0) for label in classes])


def recommended(context: ReportContext) -> dict[str, Candidate]:
    """Return dataset -> the method that its validation images recommend, for datasets with such images."""
    return {data: best(methods) for data, methods in candidates(context).items()}


def candidates(context: ReportContext) -> dict[str, list[Candidate]]:
    """Return dataset -> the methods that its validation images can judge; a dataset without any is left out.

    A method counts only if it was run on every split of the classes that any method was run on, and if its weights have
    not seen the validation images.
    """
    frozen = frozen_baselines(context)
    judged_of: dict[str, list[Candidate]] = {}
    for data, methods in context.methods.items():
        judged = {variant: tuple(filter(_validates, runs)) for variant, runs in methods.items()}
        splits = {variant: {run.key.data for run in runs} for variant, runs in judged.items()}
        every = set().union(*splits.values())
        by_image = any(unit_of(run.curves) == "image" for runs in judged.values() for run in runs)
        judged_of[data] = [
            Candidate(variant, _values(runs, by_image=by_image), variant == frozen.get(data), by_image, runs)
            for variant, runs in judged.items()
            if runs and splits[variant] == every
        ]
    return {data: methods for data, methods in judged_of.items() if methods}


def _values(runs: Iterable[RunFolder], *, by_image: bool) -> Doubles:
    """Return the `values` of a `Candidate`."""
    by_unit: dict[int, list[Doubles]] = defaultdict(list)
    for run in runs:
        val = run.embeddings("val")
        for unit, values in zip(*of_units(val["mean"], val["label"], by_image=by_image), strict=True):
            by_unit[int(unit)].append(values)
    return np.stack([np.mean(by_unit[unit], axis=0) for unit in sorted(by_unit)])


def _validates(run: RunFolder) -> bool:
    chosen = run.find("settings.training.selection", default="validation")
    return chosen == "validation" and bool(with_partner(run.tensors("val", "label").get("label", ())).any())


def recommendation(context: ReportContext) -> str:
    """Say for each dataset of an experiment which method to deploy, and how.

    Raises:
        ConfigError: no run is finished.
    """
    lines = [line for data, methods in candidates(context).items() for line in _lines(data, methods)]
    if not lines:
        raise ConfigError(
            f"{context.name} has no finished run with two or more validation images of a class, by which methods are "
            f"compared. Make the runs: snakemake --config experiments={context.name}. If they are made, add images."
        )
    return "\n".join(lines)


def _lines(data: str, methods: list[Candidate]) -> list[str]:
    chosen = best(methods)
    width = max(len(name) for name in (*(each.method for each in methods), data))
    lines = [f"{data:<{width}}  validation: MAP@R  recall@1"]
    for each in sorted(methods, key=lambda candidate: candidate.means, reverse=True):
        precision, recall = each.means
        mark = "  <- recommended" if each is chosen else ""
        lines.append(f"{each.method:<{width}}  {precision:>17.4f}  {recall:>8.4f}{mark}")
    if chosen.frozen:
        lines.append(f"Frozen features are the safe choice: on {chosen.evidence} no other method is clearly better.")
    elif any(each.frozen for each in methods):
        lines.append(
            f"{chosen.method} is clearly better than frozen features on the validation images. No test image was used."
        )
    key = chosen.runs[0].key
    lines.append(f"Deploy: probmetric export {key.run} {data}-model")
    if not chosen.frozen:
        changed = [*override_items(key.overrides), "training.selection=refit"]
        again = replace(key, overrides="+".join(sorted(changed, key=lambda item: item.partition("=")[0]))).run
        lines.append(
            f"To train it on the validation images too: snakemake --config experiments=[] 'runs=[{again}]', then "
            "export that run."
        )
    return lines
