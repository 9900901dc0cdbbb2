"""Which method of an experiment to deploy, in words: see `probmetric.reporting.recommended` for how it is chosen."""

from __future__ import annotations

from collections.abc import Mapping

from probmetric.config import ConfigError, Params
from probmetric.io import present
from probmetric.planning.expansion import plan_experiment
from probmetric.reporting.recommended import Candidate, best
from probmetric.reporting.settings import is_frozen
from probmetric.runs.folder import RunFolder
from probmetric.runs.plan import Run


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


def _lines(data: str, methods: Mapping[str, list[Run]]) -> list[str]:
    candidates = [
        Candidate(name, tuple(RunFolder.named(run.name) for run in runs), is_frozen(runs[0].settings.plain()))
        for name, runs in methods.items()
    ]
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
    run = chosen.runs[0].key.run
    if chosen.frozen:
        return [f"Deploy: probmetric export {run} {data}-model"]
    again = run.replace(f"/{chosen.method}/", f"/{chosen.method}+training.selection=refit/")
    return [
        f"Deploy: probmetric export {run} {data}-model",
        f"Trained on the validation images too: probmetric run {again}, then export that.",
    ]
