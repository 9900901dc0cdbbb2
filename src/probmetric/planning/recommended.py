"""Which method of an experiment to deploy: chosen on the validation images, never worse there than frozen features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from probmetric.config import ConfigError, Params, RunSettings
from probmetric.models import REGISTRY as BACKBONES
from probmetric.planning.expansion import plan_experiment
from probmetric.runs.folder import RunFolder
from probmetric.runs.plan import Run

CHOSEN_BY, SHOWN = "val/retrieval/map_at_r", "retrieval/recall_at_1"


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

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the seeds; below every value where it was not measured."""
        values = [RunFolder.named(run.name).metrics.get(metric) for run in self.runs]
        measured = [value for value in values if value is not None]
        return fmean(measured) if measured else -1.0


def recommendation(params: Params, experiment: str) -> str:
    """Say for each dataset of an experiment which method to deploy, and how.

    Raises:
        ConfigError: an unknown experiment, or nothing is finished.
    """
    data: dict[str, dict[str, list[Run]]] = {}
    for run in plan_experiment(params, experiment).runs:
        if RunFolder.named(run.name).finished:
            name, method, _ = run.name.split("/")
            data.setdefault(name, {}).setdefault(method, []).append(run)
    if not data:
        raise ConfigError(f"no run of {experiment} is finished; make them: snakemake --config experiments={experiment}")
    return "\n".join(line for name, methods in data.items() for line in _lines(name, methods))


def best(candidates: list[Candidate]) -> Candidate:
    """Return the candidate with the best mean on validation images; of equals a frozen one, else the first."""
    return max(candidates, key=lambda candidate: (candidate.mean(CHOSEN_BY), candidate.frozen))


def is_frozen(settings: RunSettings) -> bool:
    """Whether the embeddings are what a pretrained network, or whoever made the vectors, gives."""
    backbone = settings.backbone
    headless = not BACKBONES.holds(backbone.name, "has_head", backbone.options)
    return headless and settings.training.epochs == 0


def _lines(data: str, methods: Mapping[str, list[Run]]) -> list[str]:
    candidates = [Candidate(name, tuple(runs), is_frozen(runs[0].settings)) for name, runs in methods.items()]
    chosen = best(candidates)
    width = max(len(name) for name in methods)
    lines = [f"{data}: {'method':<{width}}  validation MAP@R  test recall@1"]
    for each in sorted(candidates, key=lambda candidate: -candidate.mean(CHOSEN_BY)):
        mark = "  <- recommended" if each is chosen else ""
        values = f"{each.mean(CHOSEN_BY):>16.4f}  {each.mean(SHOWN):>13.4f}"
        lines.append(f"{' ' * len(data)}  {each.method:<{width}}  {values}{mark}")
    baseline = next((each for each in candidates if each.frozen), None)
    if chosen.frozen:
        lines.append(
            "Frozen features are the best you have: nothing that was fitted or trained beats them in validation."
        )
    elif baseline is not None:
        gain = chosen.mean(CHOSEN_BY) - baseline.mean(CHOSEN_BY)
        lines.append(f"{chosen.method} is {gain:.4f} above frozen features in validation; the test images had no say.")
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
