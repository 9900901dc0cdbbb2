"""A run on disk: what its folder is called, what it measured, how it was made.

results/<dataset>[+noise<rate>]/<method>[+key=value...]/seed<k>/
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from probmetric.io import FileError, read_json, read_yaml
from probmetric.run_names import RunKey

RERUN = "delete the run folder and run the workflow again"


@dataclass(frozen=True)
class Run:
    """A finished run; its files are read when they are asked for."""

    folder: Path
    key: RunKey

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """A run by its folder."""
        return cls(Path(folder), RunKey.parse(folder))

    @property
    def finished(self) -> bool:
        """Whether the run was evaluated: it has metrics.json."""
        return (self.folder / "metrics.json").exists()

    @functools.cached_property
    def metrics(self) -> dict[str, float | None]:
        """Metric name -> value; None where the metric is not defined for this run."""
        path = self.folder / "metrics.json"
        values = read_json(path, fix=RERUN)
        wrong = [name for name, value in values.items() if not isinstance(value, int | float | None)]
        if wrong:
            raise FileError(f"{path}: {', '.join(wrong)} must be a number or null; {RERUN}.")
        return values

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The resolved configuration with versions, hardware and data digest (`run.yaml`)."""
        return read_yaml(self.folder / "run.yaml") or {}

    @functools.cached_property
    def curves(self) -> dict[str, Any]:
        """Curves of the evaluation by name; empty where none were written."""
        path = self.folder / "curves.json"
        return read_json(path, fix=RERUN) if path.exists() else {}

    @functools.cached_property
    def history(self) -> list[dict[str, float | None]]:
        """Rows of `history.csv` as numbers; empty for a run without training of its own."""
        path = self.folder / "history.csv"
        if not path.exists():
            return []
        with path.open(newline="", encoding="utf-8") as file:
            return [{name: _number(text, path) for name, text in row.items()} for row in csv.DictReader(file)]

    @property
    def times(self) -> dict[str, float]:
        """What training and embedding took; empty where the run did not train, or was embedded before it was timed.

        The first epoch, which starts workers and compiles, is no typical one and left out of the mean.
        """
        found: dict[str, float] = {}
        seconds = [taken for row in self.history if (taken := row.get("seconds")) is not None]
        if seconds:
            found["training/epoch_seconds"] = fmean(seconds[1:] or seconds)
            found["training/seconds"] = sum(seconds)
            found["training/epochs"] = float(len(seconds))
        path = self.folder / "embeddings" / "timing.json"
        return found | (read_json(path, fix=RERUN) if path.exists() else {})

    def find(self, *names: str, default: Any = None) -> Any:
        """First setting found under one of the dotted `names`."""
        for name in names:
            value: Any = self.settings
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return default

    @property
    def fidelity(self) -> str:
        """`corrected` or `as_published`."""
        return str(self.find("fidelity", "settings.fidelity", default="corrected"))


def finished_runs(folders: Iterable[str | Path]) -> list[Run]:
    """Those of the given runs that have metrics.json, in the order of their identity; a repeated folder counts once."""
    runs = {run.key: run for run in map(Run.open, folders) if run.finished}
    return sorted(runs.values(), key=lambda run: run.key)


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys: `{"loss": {"scale": 32}}` -> `{"loss.scale": 32}`."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(item, Mapping):
            flat |= flatten(item, name)
        else:
            flat[name] = item
    return flat


def _number(text: str | None, path: Path) -> float | None:
    if text is None or text == "":
        return None
    try:
        return float(text)
    except ValueError:
        raise FileError(f"{path}: {text!r} is not a number; {RERUN}.") from None
