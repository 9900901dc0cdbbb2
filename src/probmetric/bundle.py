"""Making a bundle: the unfinished steps of several runs, one run after the other, in one process.

Seeds that are to be stacked (`training.stack`) are trained together first. One that fails there, or a stack that is
refused, is trained in its turn like any other run, whose log then says what is wrong.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from probmetric import pipeline
from probmetric.errors import ProbMetricError
from probmetric.io import FileError
from probmetric.planning.bundles import BundlePlan, stacks
from probmetric.planning.plans import RunPlan
from probmetric.planning.staleness import Judge, steps_of
from probmetric.run_folder import Step

log = logging.getLogger(__name__)

_STEPS: dict[Step, Callable[[RunPlan, int], None]] = {
    "train": lambda plan, threads: pipeline.train(plan, threads=threads),
    "fit_posterior": lambda plan, threads: pipeline.fit_posterior(plan, threads=threads),
    "embed": lambda plan, threads: pipeline.embed(plan, threads=threads),
    "evaluate": lambda plan, threads: pipeline.evaluate(plan),
}


def make(bundle: BundlePlan, *, threads: int = 1) -> None:
    """Make what is not finished of a bundle's runs; a run that fails stops only itself and those that need it.

    Every step's messages go to `logs/<step>/<run>.log`, as those of a job of its own.

    Args:
        bundle: the runs; those that train encoders for others stand first.
        threads: CPU threads.

    Raises:
        FileError: some runs failed; names their logs.
        TrainingStoppedError: SIGTERM arrived; what is finished stays, the same call goes on.
    """
    plans = bundle.plans()
    runs = {plan.run.name: plan.run for plan in plans}
    failed: list[Path] = []
    waiting = [plan for plan in plans if not Judge(runs, bundle.stale).verdict(plan.run.name, "train").usable]
    chosen = {plan.run.name: plan for plan in waiting}
    for seeds in stacks(plan.run for plan in waiting):
        _train_together([chosen[run.name] for run in seeds], threads)
    for number, plan in enumerate(plans, 1):
        log.info("%d of %d: %s", number, len(plans), plan.run.name)
        for step in steps_of(plan.run):
            # Judged anew before every step: the one before it has changed what this one is made from.
            if Judge(runs, bundle.stale).verdict(plan.run.name, step).usable:
                continue
            path = _log_file(plan, step)
            if not _made(plan, step, threads, path):
                failed.append(path)
                break
    if failed:
        raise FileError(f"{len(failed)} of {len(plans)} runs failed; see {', '.join(map(str, failed[:5]))}.")


def _train_together(plans: list[RunPlan], threads: int) -> None:
    """Train seeds as one stacked model; what does not succeed is left to be trained alone."""
    from probmetric.training.loop import TrainingStoppedError

    plans = [plan for plan in plans if not pipeline.already_made(plan, "train")]
    if len(plans) < 2:
        return
    with contextlib.ExitStack() as logs:
        for plan in plans:
            logs.enter_context(_logged(_log_file(plan, "train")))
        log.info("%d seeds are trained together: %s", len(plans), ", ".join(plan.run.name for plan in plans))
        try:
            pipeline.train_together(plans, threads=threads)
        except TrainingStoppedError:
            raise
        except (ProbMetricError, RuntimeError, ValueError, OSError) as error:
            log.warning("%s", error)


def _log_file(plan: RunPlan, step: Step) -> Path:
    return Path("logs") / step / f"{plan.run.name}.log"


def _made(plan: RunPlan, step: Step, threads: int, path: Path) -> bool:
    """Make one step; False if it failed, which its log explains."""
    from probmetric.training.loop import TrainingStoppedError

    with _logged(path):
        try:
            if not pipeline.already_made(plan, step):
                _STEPS[step](plan, threads)
        except TrainingStoppedError:
            raise
        except (ProbMetricError, RuntimeError, ValueError, OSError):
            log.exception("%s of %s failed", step, plan.run.name)
            return False
    return True


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
