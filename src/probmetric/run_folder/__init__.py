"""A run on disk: which files its folder holds (`_files`), how they are read and how they are written (`_folder`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probmetric.run_folder._files import STEPS, Split, Step, Which
from probmetric.run_folder._folder import Embeddings, RunFolder

__all__ = [
    "STEPS",
    "Embeddings",
    "RunFolder",
    "Split",
    "Step",
    "Which",
    "finished_runs",
    "flatten",
]


def finished_runs(runs: Iterable[str | Path | RunFolder]) -> list[RunFolder]:
    """Those of the given runs that have metrics.json, in the order of their names; a repeated one counts once."""
    opened = (run if isinstance(run, RunFolder) else RunFolder(run) for run in runs)
    found = {run.key: run for run in opened if run.finished}
    return sorted(found.values(), key=lambda run: run.key)


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
