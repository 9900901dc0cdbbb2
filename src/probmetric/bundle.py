"""Making a bundle: the unfinished steps of several runs, one run after the other, in one job.

Every run has a child of this process to itself, which has imported everything already: one that runs out of memory or
crashes stops only itself. Its steps write to their own logs and leave their own rows in `benchmarks/jobs`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from probmetric.config import StalePolicy
from probmetric.errors import ProbMetricError
from probmetric.io import FileError, write_text
from probmetric.job_times import JOBS
from probmetric.launch import Children
from probmetric.planning.bundles import BundlePlan
from probmetric.planning.plans import RunPlan
from probmetric.planning.runs import Run
from probmetric.planning.staleness import Judge, steps_of
from probmetric.runs import steps as pipeline
from probmetric.runs.folder import Step

log = logging.getLogger(__name__)

_STEPS: dict[Step, Callable[[RunPlan, int], None]] = {
    "train": lambda plan, threads: pipeline.train(plan, threads=threads),
    "fit_posterior": lambda plan, threads: pipeline.fit_posterior(plan, threads=threads),
    "embed": lambda plan, threads: pipeline.embed(plan, threads=threads),
    "evaluate": lambda plan, threads: pipeline.evaluate(plan),
}
_IMPORTED = ("training", "data.images", "evaluation.evaluator", "evaluation.answers", "tracking")


class StoppedError(ProbMetricError, RuntimeError):
    """A bundle was asked to stop; what is finished stays, the state of a training is saved."""


def make(bundle: BundlePlan, *, threads: int = 1) -> None:
    """Make what is not finished of a bundle's runs; a run that fails stops only itself and those that need it.

    Every step's messages go to `logs/<step>/<run>.log`, as those of a job of its own.

    Args:
        bundle: the runs; those that train encoders for others stand first.
        threads: CPU threads.

    Raises:
        FileError: some runs failed; names their logs.
        StoppedError: SIGTERM arrived; the same call goes on.
    """
    for module in _IMPORTED:
        importlib.import_module(f"probmetric.{module}")
    plans = bundle.plans()
    judges = _Judges({plan.run.name: plan.run for plan in plans}, bundle.stale)
    failed: list[Path] = []
    with Children() as children:
        for number, plan in enumerate(plans, 1):
            log.info("%d of %d: %s", number, len(plans), plan.run.name)
            if status := _status(children, lambda: _make_run(plan, judges, threads)):  # noqa: B023
                failed.append(_explained(plan, judges, status))
    if failed:
        raise FileError(f"{len(failed)} of {len(plans)} runs failed; see {', '.join(map(str, failed[:5]))}.")


@dataclass(frozen=True)
class _Judges:
    """Judges the runs of a bundle anew at every question: the step before it has changed what a step is made from."""

    runs: Mapping[str, Run]
    stale: StalePolicy

    def usable(self, plan: RunPlan, step: Step) -> bool:
        """Whether the step is finished and its files may be used."""
        return Judge(self.runs, self.stale).verdict(plan.run.name, step).usable


def _status(children: Children, work: Callable[[], bool]) -> int:
    """0 if a child did the work, 1 if it failed, negative if a signal killed it."""
    status = children.status(lambda: 0 if work() else 1)
    if children.stopped:
        raise StoppedError("stopped by request; what is finished is kept, the same command goes on.")
    return status


def _make_run(plan: RunPlan, judges: _Judges, threads: int) -> bool:
    """Make the unfinished steps of a run; False if one failed."""
    return all(
        judges.usable(plan, step) or _made(plan, step, threads, _log_file(plan, step)) for step in steps_of(plan.run)
    )


def _explained(plan: RunPlan, judges: _Judges, status: int) -> Path:
    """The log of the step that failed; what killed it, where a signal did, is written there."""
    path = _log_file(plan, next(step for step in steps_of(plan.run) if not judges.usable(plan, step)))
    if status < 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"killed by {signal.Signals(-status).name}; SIGKILL is mostly for want of memory.\n")
    return path


def _log_file(plan: RunPlan, step: Step) -> Path:
    return Path("logs") / step / f"{plan.run.name}.log"


def _made(plan: RunPlan, step: Step, threads: int, path: Path) -> bool:
    """Make one step; False if it failed, which its log explains."""
    with _logged(path):
        try:
            if not pipeline.already_made(plan, step):
                with _recorded(plan, step):
                    _STEPS[step](plan, threads)
        except (ProbMetricError, RuntimeError, ValueError, OSError):
            log.exception("%s of %s failed", step, plan.run.name)
            return False
    return True


@contextlib.contextmanager
def _recorded(plan: RunPlan, step: Step) -> Iterator[None]:
    """Write the row Snakemake writes for a job of its own: of one step, for this process began with another."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    yield
    used, seconds = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - started
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    row = {
        "s": f"{seconds:.2f}",
        "h:m:s": str(timedelta(seconds=int(seconds))),
        "max_rss": f"{used.ru_maxrss / 1024:.2f}",
        **dict.fromkeys(("max_vms", "max_uss", "max_pss"), "NA"),
        "io_in": f"{(used.ru_inblock - before.ru_inblock) / 2048:.2f}",
        "io_out": f"{(used.ru_oublock - before.ru_oublock) / 2048:.2f}",
        "mean_load": f"{100 * cpu / max(seconds, 1e-3):.2f}",
        "cpu_time": f"{cpu:.2f}",
    }
    write_text(JOBS / step / f"{plan.run.name}.tsv", "\t".join(row) + "\n" + "\t".join(row.values()) + "\n")


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Messages go to the file `path` too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    logging.getLogger("probmetric").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("probmetric").removeHandler(handler)
        handler.close()
