"""Describe a planned run, and write and read its plan file, from which its job takes everything.

    state/plans/<dataset>[+noise<rate>]/<method>[+key=value...]/seed<k>.json

Planning rewrites the file only if the plan has changed, so that Snakemake can compare its time with those of the
results. The file holds the settings and the identity of each step (`probmetric.runs.identity`), which depends on code.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probmetric import uncertainty
from probmetric.config import Component, RunSettings, parse
from probmetric.io import FileError, read_json, remembered_json, write_text
from probmetric.registry import load_plugins
from probmetric.runs.folder import STEPS, RunFolder, Step
from probmetric.runs.names import RESULTS, RunKey

PLANS = Path("state/plans")
AGAIN = "plan again: run `snakemake`, or the command without --plan"


@dataclass(frozen=True)
class Run:
    """One run: its name (folder below `results/`), its resolved settings, and the run whose encoder it uses."""

    name: str
    encoder: str
    settings: RunSettings

    @property
    def trains(self) -> bool:
        """Whether the encoder is the run's own (no `base`)."""
        return self.name == self.encoder

    @property
    def encoders(self) -> tuple[str, ...]:
        """Runs whose encoders it uses: `encoder` and, for an ensemble, the runs with further seeds."""
        return encoder_runs(self.encoder, self.settings.uncertainty)

    @property
    def origin(self) -> str | None:
        """Run from whose weights its training starts, if `pretrained` is the weight file of a run."""
        return origin_run(self.settings.pretrained)

    @property
    def fits_posterior(self) -> bool:
        """Whether the uncertainty has parameters fitted after training."""
        return bool(uncertainty.REGISTRY.constant(self.settings.uncertainty.name, "fits", False))

    @property
    def data(self) -> tuple[str, ...]:
        """Prepared datasets the run reads: its own, then its OOD sets."""
        return (self.settings.data, *self.settings.ood)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps of the run in their order; a run with a base does not train."""
        training: tuple[Step, ...] = ("train",) if self.trains else ()
        posterior: tuple[Step, ...] = ("fit",) if self.fits_posterior else ()
        return (*training, *posterior, "embed", "evaluate")

    def steps_until(self, last: Step) -> list[Step]:
        """Return the steps of the run up to the given one, which may be missing in the run."""
        return [step for step in self.steps if STEPS.index(step) <= STEPS.index(last)]


def origin_run(pretrained: str | bool | None) -> str | None:
    """Return the run that writes the weight file `pretrained`; None if the file is no run's, or none is named."""
    path = Path(str(pretrained))
    if not path.is_relative_to(RESULTS) or path != RunFolder(path.parent).weights_file():
        return None
    with contextlib.suppress(FileError):
        return RunKey.parse(str(path.parent.relative_to(RESULTS))).run
    return None


def encoder_runs(encoder: str, chosen: Component) -> tuple[str, ...]:
    """Return the runs that train the K encoders which uncertainty `chosen` combines, `encoder` first.

    K is the uncertainty's option `members`; without such an option it is 1. With `over: seeds` they are seeds k, k+d,
    ..., k+(K-1)d, d its option `apart`; with `over: folds` the datasets numbered 1 to K (cub-mlrc1 to cub-mlrc4).
    """
    options = uncertainty.REGISTRY.options(chosen.name)
    if "members" not in options:
        return (encoder,)
    count, apart = (int(chosen.options.get(name, options[name].default)) for name in ("members", "apart"))
    key = RunKey.parse(encoder)
    if chosen.options.get("over") == "folds":
        stem = key.dataset.rstrip("0123456789")
        return tuple(replace(key, dataset=f"{stem}{member + 1}").run for member in range(count))
    return tuple(replace(key, seed=key.seed + apart * member).run for member in range(count))


@dataclass(frozen=True)
class RunPlan:
    """One run, the MLflow store that shows its curves while it trains, and the modules of the user's own components."""

    run: Run
    store: str = ""
    plugins: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Path of the plan file."""
        return PLANS / f"{self.run.name}.json"

    def write(self, steps: Mapping[str, str] | None = None, *, again: bool = False) -> Path:
        """Write the plan, unless it stands there already; returns its path.

        Args:
            steps: step -> identity (`identity.planned_steps`).
            again: change the file in any case, so that Snakemake makes the run again.
        """
        run = self.run
        values = {
            "run": run.name,
            "encoder": run.encoder,
            "settings": run.settings.model_dump(mode="json", exclude={"label"}),
            "store": self.store,
            "plugins": list(self.plugins),
            "steps": dict(steps or {}),
        }
        return write_if_changed(self.path, values, again=again)

    @classmethod
    def read(cls, path: str | Path) -> RunPlan:
        """Read a plan.

        Raises:
            FileError: it is missing or damaged.
        """
        values = read_json(path, AGAIN, dict[str, Any])
        try:
            load_plugins(values["plugins"])
            run = Run(values["run"], values["encoder"], parse(RunSettings, values["settings"], str(path), checked=True))
            return cls(run, values["store"], tuple(values["plugins"]))
        except (KeyError, TypeError) as error:
            raise FileError(f"{path} is damaged or was edited ({error!r}); {AGAIN}.") from error


def recorded_run(name: str, results: Path = RESULTS) -> Run:
    """Return a finished run below `results` with the settings it was made with (`run.yaml`).

    Raises:
        FileError: the run is not finished, or its record was changed.
    """
    folder = RunFolder.named(name, results)
    if not folder.finished:
        raise FileError(f"{name} is not finished; make it: `probmetric run {name}`.")
    values, path = folder.record, folder.record_file
    load_plugins(values.get("plugins", ()))
    try:
        return Run(name, values["encoder"], parse(RunSettings, values["settings"], str(path), checked=True))
    except (KeyError, TypeError) as error:
        raise FileError(f"{path} was changed ({error!r}); delete it and run the workflow again.") from error


def write_if_changed(path: Path, values: Mapping[str, Any], *, again: bool = False) -> Path:
    """Write `values` as JSON unless the file holds them already, so that its time is the time of the last change.

    `again` increases a number in the file, because Snakemake regards a newer file with the same content as unchanged.

    Args:
        path: the file.
        values: name -> value.
        again: whether to change the file in any case.
    """
    written = remembered_json(path)
    count = written.get("again", 0) if isinstance(written, dict) else 0
    text = _text(values, count)
    unchanged = written is not None and path.read_bytes() == text.encode()
    if unchanged and again:
        text = _text(values, count + 1)
    if again or not unchanged:
        write_text(path, text)
    return path


def _text(values: Mapping[str, Any], again: int) -> str:
    counted = {**values, "again": again} if again else values
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in counted.items())
    return f"{{\n{lines}\n}}\n"
