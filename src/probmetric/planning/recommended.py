"""Which method of an experiment to deploy: chosen on the validation images alone.

Frozen features are the answer unless a method is better for certain: the classes' mean differences of MAP@R have a
t-interval (confidence 0.9) above zero, and recall@1 is not lower. Of several such methods the best mean MAP@R counts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probmetric.config import ConfigError, Params
from probmetric.io import present
from probmetric.metrics.statistics import mean_interval
from probmetric.planning.expansion import plan_experiment
from probmetric.reporting.settings import is_frozen
from probmetric.retrieval.measures import retrieval_per_query
from probmetric.runs.folder import RunFolder
from probmetric.runs.plan import Run

CONFIDENCE = 0.9


@dataclass(frozen=True)
class Candidate:
    """A method with finished runs on one dataset.

    Attributes:
        method: its name.
        runs: its finished runs, of several seeds.
        frozen: whether nothing was trained or fitted.
    """

    method: str
    runs: tuple[Run, ...]
    frozen: bool

    @functools.cached_property
    def by_class(self) -> NDArray[np.float64]:
        """Return MAP@R and recall@1 of each validation class (C, 2), means over its images and the seeds."""
        return np.mean([_by_class(RunFolder.named(run.name)) for run in self.runs], axis=0)

    @property
    def means(self) -> tuple[float, float]:
        """Return MAP@R and recall@1, each the mean over the validation classes."""
        precision, recall = self.by_class.mean(axis=0)
        return float(precision), float(recall)

    def beats(self, other: Candidate) -> bool:
        """Say whether this is better than the other for certain."""
        mean, half = mean_interval(self.by_class[:, 0] - other.by_class[:, 0], CONFIDENCE)
        return mean - half > 0 and self.means[1] >= other.means[1]


def _by_class(run: RunFolder) -> NDArray[np.float64]:
    split = run.embeddings("val")
    values = retrieval_per_query(split["mean"], split["label"], ks=(1,), normalize=True)
    both = np.stack([values["map_at_r"], values["recall_at_1"]], axis=1)
    return np.stack([both[split["label"] == label].mean(axis=0) for label in np.unique(split["label"])])


def recommendation(params: Params, experiment: str) -> str:
    """Say for each dataset of an experiment which method to deploy, and how.

    Raises:
        ConfigError: an unknown experiment, or nothing is finished.
    """
    data: dict[str, dict[str, list[Run]]] = {}
    for run in plan_experiment(params, experiment).runs:
        folder = RunFolder.named(run.name)
        if folder.finished and present(folder.embeddings_file("val")):
            name, method, _ = run.name.split("/")
            data.setdefault(name, {}).setdefault(method, []).append(run)
    if not data:
        raise ConfigError(f"no run of {experiment} is finished; make them: snakemake --config experiments={experiment}")
    return "\n".join(line for name, methods in data.items() for line in _lines(name, methods))


def best(candidates: list[Candidate]) -> Candidate:
    """Return the candidate to deploy: the best of those that beat the frozen features, or these."""
    baseline = next((each for each in candidates if each.frozen), None)
    better = [each for each in candidates if baseline is None or each.beats(baseline)]
    return max(better, key=lambda each: each.means) if better else baseline or candidates[0]


def _lines(data: str, methods: Mapping[str, list[Run]]) -> list[str]:
    candidates = [Candidate(name, tuple(runs), is_frozen(runs[0].settings.plain())) for name, runs in methods.items()]
    chosen = best(candidates)
    width = max(len(name) for name in (*methods, data))
    lines = [f"{data:<{width}}  validation: MAP@R  recall@1"]
    for each in sorted(candidates, key=lambda candidate: candidate.means, reverse=True):
        precision, recall = each.means
        mark = "  <- recommended" if each is chosen else ""
        lines.append(f"{each.method:<{width}}  {precision:>17.4f}  {recall:>8.4f}{mark}")
    if chosen.frozen:
        lines.append(
            f"Frozen features are the best you have: in {len(chosen.by_class)} validation classes nothing that was "
            "fitted or trained is better for certain."
        )
    elif any(each.frozen for each in candidates):
        lines.append(f"{chosen.method} is better than frozen features in validation; the test images had no say.")
    return [*lines, *_deployed(data, chosen)]


def _deployed(data: str, chosen: Candidate) -> list[str]:
    """Return the commands that make the model to deploy."""
    run = chosen.runs[0]
    if chosen.frozen:
        return [f"Deploy: probmetric export {run.name} {data}-model"]
    again = run.name.replace(f"/{chosen.method}/", f"/{chosen.method}+training.selection=refit/")
    return [
        f"Deploy: probmetric export {run.name} {data}-model",
        f"Trained on the validation images too: probmetric run {again}, then export that.",
    ]
