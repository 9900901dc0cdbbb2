"""What MLflow is to hold of a run folder or of a report: read from the files, nothing of MLflow yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probmetric.config import Evaluation, Training
from probmetric.io import digest_of, read_json, sha256_file
from probmetric.metrics import is_headline
from probmetric.runs.folder import RunFolder, flatten
from probmetric.runs.names import legal_name

REPORTS = "reports"
_REPORT_SUFFIXES = {".csv", ".html", ".json", ".md", ".pdf", ".png", ".tex"}
_ENVIRONMENT = ("versions", "hardware")
_LONGEST_TEXT = 5000
_CURVES, _POINTS = ("train_loss", "val_metric"), 5
_VIEW = 3  # raised when other things are written of the same files


@dataclass
class Entry:
    """One MLflow run to be: everything the store will hold of it.

    Attributes:
        experiment: the MLflow experiment: the dataset, or `reports`.
        run: what the run is found by again: `glyphs/arcface/seed0`.
        name: what the UI calls it.
        digest: identity of the files it shows.
        start: milliseconds since the epoch; with `end`, the time the UI shows.
        end: likewise.
        params: settings as text.
        tags: everything that is not a setting.
        metrics: (name, value, milliseconds, step).
        artifacts: name -> small file to copy.
        dataset: (name, digest) of the prepared data.
        weights: file whose digest becomes a tag.
        found_by: the tag that holds `run`.
    """

    experiment: str
    run: str
    name: str
    digest: str
    start: int
    end: int
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: list[tuple[str, float, int, int]] = field(default_factory=list)
    artifacts: dict[str, Path] = field(default_factory=dict)
    dataset: tuple[str, str] | None = None
    weights: Path | None = None
    found_by: str = "probmetric.run"

    def weights_tag(self) -> dict[str, str]:
        """Digest of the weights, computed when asked for: they may be large."""
        known = self.weights is not None and self.weights.exists()
        return {"probmetric.weights": f"sha256:{sha256_file(self.weights)}"} if known and self.weights else {}


@dataclass(frozen=True)
class Pending:
    """What decides whether an entry is written at all: reading the rest of it takes longer.

    Attributes:
        experiment: as of the entry, like the two that follow.
        run: what the run is found by again.
        digest: identity of the files.
        built: reads the entry.
    """

    experiment: str
    run: str
    digest: str
    built: Callable[[], Entry]


def pending_run(run: RunFolder) -> Pending:
    """The entry of a run, not yet read."""
    digest = _digest(run)
    return Pending(run.key.dataset, run.key.run, digest, lambda: _run_entry(run, digest))


def pending_report(experiment: str, folder: Path) -> Pending | None:
    """The entry of a report; None without a report."""
    entry = _report_entry(experiment, folder)
    return Pending(entry.experiment, entry.run, entry.digest, lambda: entry) if entry else None


def _run_entry(run: RunFolder, digest: str) -> Entry:
    """The run's parameters, curves by epoch, headline metrics, tags and small files; weights by their digest only."""
    end = int(run.metrics_file.stat().st_mtime * 1000)
    seconds = [row.get("seconds") or 0.0 for row in run.history]
    start = end - int(1000 * math.fsum(seconds))
    key = run.key
    description = {"dataset": key.dataset, "noise": f"{key.noise:g}", "method": key.method, "seed": str(key.seed)}
    description |= {"made": key.made} if key.made else {}
    settings = run.record.get("settings", run.record)
    chosen = {name: value for name, value in settings.items() if name not in (*_ENVIRONMENT, "data_digest")}
    around = flatten({name: run.record.get(name) or {} for name in _ENVIRONMENT})
    commit, encoder = around.pop("versions.git", ""), run.find("encoder", default="")
    data_digest = str(run.find("data_digest", default=""))
    return Entry(
        experiment=key.dataset,
        run=key.run,
        name=f"{key.variant} seed{key.seed}" + (f" noise{key.noise:g}" if key.noise else ""),
        digest=digest,
        start=start,
        end=end,
        params=legal_texts({"noise": f"{key.noise:g}", "overrides": key.overrides} | _chosen(chosen)),
        tags=legal_texts(
            {f"probmetric.{name}": value for name, value in description.items()}
            | {f"environment.{name}": value for name, value in around.items()}
            | {
                "probmetric.fidelity": run.fidelity,
                "probmetric.data_digest": data_digest,
                "probmetric.encoder": encoder if encoder != key.run else "",  # named where it is another run's
                "mlflow.source.git.commit": commit,
                "mlflow.source.name": "probmetric",
                "mlflow.note.content": f"Weights and embeddings: `results/{key.run}/` in the repository.",
            }
        ),
        metrics=_run_metrics(run, start, end),
        artifacts=run.text_files,
        dataset=(key.data, data_digest[:36]) if data_digest else None,
        weights=run.weights_file(),
    )


def _chosen(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key, without those of training and evaluation that were left at their defaults."""
    usual = flatten(
        {"training": Training().model_dump(mode="json"), "evaluation": Evaluation().model_dump(mode="json")}
    )
    return {name: value for name, value in flatten(settings).items() if name not in usual or usual[name] != value}


def _run_metrics(run: RunFolder, start: int, end: int) -> list[tuple[str, float, int, int]]:
    """(name, value, milliseconds, step) of the curves by epoch, thinned, and of the headlines."""
    found = []
    now = float(start)
    shown = _spread(len(run.history))
    for number, row in enumerate(run.history):
        now += 1000 * (row.get("seconds") or 0.0)
        epoch = int(row.get("epoch") or 0)
        for name in _CURVES if number in shown else ():
            value = row.get(name)
            if value is not None and math.isfinite(value):
                found.append((f"by_epoch/{name}", value, int(now), epoch))
    training = run.find("training", default={}) if "settings" in run.record else {}
    numbers = {f"training/{name}": value for name, value in training.items() if isinstance(value, int | float)}
    for name, value in (numbers | run.metrics).items():
        if value is not None and math.isfinite(value) and is_headline(name):
            found.append((legal_name(name), float(value), end, 0))
    return found


def _spread(epochs: int) -> set[int]:
    """Numbers of at most `_POINTS` epochs, evenly spread, the first and the last among them."""
    points = min(epochs, _POINTS)
    return {round(point * (epochs - 1) / max(1, points - 1)) for point in range(points)}


def _report_entry(experiment: str, folder: Path) -> Entry | None:
    """The report's tables, figures and page as one run of the experiment `reports`; None without a report."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if _is_result(path)}
    if not files:
        return None
    end = int(max(path.stat().st_mtime for path in files.values()) * 1000)
    summary = read_json(folder / "metrics.json") if "metrics.json" in files else {}
    return Entry(
        experiment=REPORTS,
        run=f"{REPORTS}/{experiment}",
        name=experiment,
        digest=digest_of({name: sha256_file(path) for name, path in files.items()}),
        start=end,
        end=end,
        tags={"mlflow.source.name": "probmetric", "mlflow.note.content": f"Tables and figures of `{experiment}`."},
        metrics=[(name, value, end, 0) for name, value in summary.items() if isinstance(value, int | float)],
        artifacts=files,
    )


def _is_result(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.suffix in _REPORT_SUFFIXES


def _digest(run: RunFolder) -> str:
    """Digest of a run: text files by content, tensors (they change with the history) by size, and how it is marked."""
    content = {name: sha256_file(path) for name, path in run.text_files.items()}
    sizes = {str(p.relative_to(run.path)): p.stat().st_size for p in sorted(run.path.rglob("*.safetensors"))}
    return digest_of(
        {"view": _VIEW, "content": content, "sizes": sizes} | ({"made": run.key.made} if run.key.made else {})
    )


def legal_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as text of bounded length under legal names; empty ones are left out."""
    return {legal_name(k): str(v)[:_LONGEST_TEXT] for k, v in values.items() if v is not None and v not in ("", [], {})}
