"""What there is to run: every experiment with its runs, data, and the hours its training is expected to take.

Hours are an extrapolation and never guessed. Images per second are taken, for each backbone and kind of image, from
`benchmarks/results/throughput.json` (`{"images_per_second": {"timm resnet50.tv_in1k, cub": 812.0}}`) or else from the
training jobs recorded on this machine (`benchmarks/jobs/train`), and multiplied with the images the runs have still to
see. Where nothing of the kind was recorded there is no estimate. Early stopping is not foreseen: an upper bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.config import ConfigError, Params
from probmetric.data.sources import REGISTRY as DATASETS
from probmetric.io import of_kind, present, read_json
from probmetric.job_times import JOBS, job_seconds
from probmetric.planning.declared import data_source, status
from probmetric.planning.experiments import experiment_names
from probmetric.planning.runs import Run, find_run, plan_experiment
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import split_data_name

if TYPE_CHECKING:
    from probmetric.planning.staleness import State, Verdict
    from probmetric.planning.workflow import WorkflowPlan

THROUGHPUT = Path("benchmarks/results/throughput.json")
_LEGEND = (
    "datasets: * not prepared yet, ! archives missing (`probmetric data status`)",
    "hours: training still to do, one run after the other, at the speed of the jobs recorded here "
    "(benchmarks/results/throughput.json, benchmarks/jobs); >= some runs are of a kind never timed",
)
_TRAINS = 0.85  # share of the training images that does not validate


@dataclass(frozen=True)
class Estimate:
    """Hours of training that remain; None where no run of the kind was ever timed."""

    hours: float | None
    unknown: int = 0

    def __str__(self) -> str:
        if self.hours is None:
            return "no estimate"
        return f"{'>= ' if self.unknown else ''}{self.hours:.1f}"


def experiment_overview(params: Params) -> str:
    """A line per experiment: runs, finished ones, hours, data needed and whether they are there, title."""
    speeds, marks = recorded_speeds(params), _Marks(params)
    rows = [("experiment", "runs", "finished", "hours", "datasets", "title")]
    for name in experiment_names():
        planned = plan_experiment(params, name)
        finished = sum(RunFolder.named(run.name).finished for run in planned.runs)
        hours = str(estimate(params, planned.runs, speeds))
        data = dict.fromkeys(data for run in planned.runs for data in run.data)
        shown = " ".join(entry + marks.of(entry) for entry in data)
        rows.append((name, str(len(planned.runs)), str(finished), hours, shown, planned.spec.title))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", *_LEGEND])


def status_text(plan: WorkflowPlan, *, every: bool = False) -> str:
    """Finished, stale, kept and missing runs of every experiment of `plan`; those with one reason on one line.

    Args:
        plan: the experiments.
        every: a line for every run instead.
    """
    blocks = []
    for name in plan.experiments:
        verdicts = {run: plan.judge.run_verdict(run) for run in plan.run_names(name)}
        states = Counter(verdict.state for verdict in verdicts.values())
        counted = ", ".join(f"{states[state]} {word}" for state, word in _WORDS.items() if states[state])
        report = "report to be made" if plan.reports_again(name) else "report up to date"
        blocks.append(f"{name}: {len(verdicts)} runs: {counted}; {report}")
        blocks += [f"  {run}  {_said(verdict)}" for run, verdict in verdicts.items()] if every else _reasons(verdicts)
    return "\n".join(blocks)


_WORDS: dict[State, str] = {
    "fresh": "finished",
    "kept": "finished by earlier code (kept)",
    "stale": "stale",
    "missing": "missing",
}


def _said(verdict: Verdict) -> str:
    return _WORDS[verdict.state] + (f": {verdict.why}" if verdict.why else "")


def _reasons(verdicts: Mapping[str, Verdict], shown: int = 6) -> list[str]:
    """A line per state and reason with the runs it concerns, at most `shown` by name."""
    found: dict[str, list[str]] = defaultdict(list)
    for run, verdict in verdicts.items():
        if verdict.state != "fresh":
            found[_said(verdict)].append(run)
    lines = []
    for reason, runs in found.items():
        more = f" and {len(runs) - shown} more" if len(runs) > shown else ""
        lines += [f"  {len(runs)} {reason}", f"      {', '.join(runs[:shown])}{more}"]
    return lines


class _Marks:
    """What is said behind a dataset's name."""

    def __init__(self, params: Params) -> None:
        self.prepared = Path(params.data.prepared)
        self.lacking = {row.name for row in status(params) if row.missing}

    def of(self, data: str) -> str:
        """Nothing if prepared, `*` if it will be when asked for, `!` if its archives are missing."""
        if (self.prepared / data / "digest").exists():
            return ""
        return "!" if split_data_name(data)[0] in self.lacking else "*"


def estimate(params: Params, runs: Iterable[Run], speeds: dict[str, float]) -> Estimate:
    """Hours to train the encoders of `runs` that are not trained yet, one after the other.

    Args:
        params: params.yaml.
        runs: runs of an experiment.
        speeds: images per second, by `kind`.
    """
    seconds, unknown = 0.0, 0
    waiting = {name: run for run in runs for name in run.encoders if not RunFolder.named(name).trained}
    for run in waiting.values():
        speed, images = speeds.get(kind(params, run)), images_seen(params, run)
        if images == 0:
            continue
        if speed is None or images is None:
            unknown += 1
        else:
            seconds += images / speed
    return Estimate(None if unknown and not seconds else seconds / 3600, unknown)


def kind(params: Params, run: Run) -> str:
    """What decides a run's speed: the backbone and the images, `timm resnet50.tv_in1k, cub`."""
    backbone = run.settings.backbone
    tag = f" {backbone.options['tag']}" if "tag" in backbone.options else ""
    return f"{backbone.name}{tag}, {data_source(params, split_data_name(run.settings.dataset)[0]).source}"


def images_seen(params: Params, run: Run) -> int | None:
    """Images a run trains on, all epochs together; None if the size of its data is not known."""
    training = run.settings.training
    if run.settings.loss is None:
        return 0
    if training.steps_per_epoch:
        return training.epochs * training.steps_per_epoch * training.batch_size
    size = _training_images(params, split_data_name(run.settings.data)[0])
    return None if size is None else training.epochs * size


def recorded_speeds(params: Params) -> dict[str, float]:
    """Images per second by `kind`: measured ones of benchmarks/results, else those of this machine's training jobs."""
    seen: dict[str, float] = defaultdict(float)
    taken: dict[str, float] = defaultdict(float)
    for path in (JOBS / "train").rglob("*.tsv"):
        try:
            run = find_run(params, str(path.relative_to(JOBS / "train").with_suffix("")))
        except ConfigError:
            continue
        images = images_seen(params, run)
        if images:
            seen[kind(params, run)] += images
            taken[kind(params, run)] += job_seconds(path, "s")
    speeds = {name: seen[name] / seconds for name, seconds in taken.items() if seconds}
    measured = read_json(THROUGHPUT, "measure again", dict[str, Any]) if present(THROUGHPUT) else {}
    return speeds | of_kind(measured.get("images_per_second", {}), dict[str, float], THROUGHPUT, "measure again")


def _training_images(params: Params, dataset: str) -> int | None:
    """Images of the training split: as prepared, else from the published counts."""
    from probmetric.data.manifest import SUMMARY, read_summary

    folder = Path(params.data.prepared) / dataset
    if present(folder / SUMMARY):
        splits = of_kind(
            read_summary(folder)["splits"], dict[str, dict[str, int]], folder / SUMMARY, "prepare it again"
        )
        return splits.get("train", {}).get("images")  # type: ignore[no-any-return]
    counts = DATASETS.constant(data_source(params, dataset).source, "counts", {})
    published = counts.get("train+val") if isinstance(counts, dict) else None
    return None if published is None else round(_TRAINS * published)
