"""Entries for MLflow: of a run and of a report, read from their files, and of a method, read from its runs in MLflow.

MLflow's run table folds a run below the run that its tag `mlflow.parentRunId` names. A parent here is a row of the
report's tables: a method with its overrides at one noise rate of a dataset. Its children are the seeds, and its metrics
are means over them, of the metrics that all seeds have. Reports share runs, so a parent belongs to no single report: it
holds all finished runs of its method in the store and has the tags of all their reports.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from probmetric.config import Evaluation, Training
from probmetric.io import digest_of, read_json, sha256_file
from probmetric.metrics import is_headline
from probmetric.runs.folder import RunFolder, flatten
from probmetric.runs.names import RunKey, legal_name, noise_text, split_data_name

if TYPE_CHECKING:
    from mlflow.entities import Run

RUN_TAG, PARENT_TAG, KIND_TAG = "probmetric.run", "probmetric.parent", "probmetric.kind"
DIGEST_TAG, MEMBER_TAG = "probmetric.digest", "probmetric.experiment."
REPORTS = "reports"
_REPORT_SUFFIXES = {".csv", ".html", ".json", ".md", ".pdf", ".png", ".tex"}
_LONGEST_TEXT = 5000
_CURVES = ("train_loss", "val_metric")
_VIEW = 6  # raise it when the code writes other content from the same files

Point = tuple[str, float, int, int]
"""Name, value, milliseconds since the epoch and step of a metric."""


@dataclass
class Entry:
    """The content of one MLflow run.

    Attributes:
        name: its name in the UI.
        start: start of the time that the UI shows, in milliseconds since the epoch.
        end: end of that time.
        params: settings as text.
        tags: facts that are not settings.
        metrics: its metrics and curves.
        artifacts: name -> small file to copy.
        dataset: (name, digest) of the prepared data.
    """

    name: str
    start: int
    end: int
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: list[Point] = field(default_factory=list)
    artifacts: dict[str, Path] = field(default_factory=dict)
    dataset: tuple[str, str] | None = None


@dataclass(frozen=True)
class Source:
    """Files that get one entry in MLflow.

    Attributes:
        experiment: the MLflow experiment: the dataset, or `reports`.
        run: key that finds the entry again: `glyphs/arcface/seed0`.
        digest: identity of the files.
        read: reads the entry (slow).
    """

    experiment: str
    run: str
    digest: str
    read: Callable[[], Entry]


def run_source(run: RunFolder) -> Source:
    """Return the source of a run. Text files count by content; tensors, which change with the history, by size."""
    content = {name: sha256_file(path) for name, path in run.text_files.items()}
    sizes = {str(path.relative_to(run.path)): path.stat().st_size for path in sorted(run.path.rglob("*.safetensors"))}
    digest = digest_of({"view": _VIEW, "content": content, "sizes": sizes})
    return Source(_dataset(run.key), run.key.run, digest, lambda: _run_entry(run))


def report_source(experiment: str, folder: Path) -> Source | None:
    """Return the source of a report (its tables, figures and page), or None if it has no files."""
    files = {
        str(path.relative_to(folder)): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".") and path.suffix in _REPORT_SUFFIXES
    }
    digest = digest_of({name: sha256_file(path) for name, path in files.items()})
    source = Source(REPORTS, f"{REPORTS}/{experiment}", digest, lambda: _report_entry(experiment, files))
    return source if files else None


def _report_entry(experiment: str, files: dict[str, Path]) -> Entry:
    end = int(max(path.stat().st_mtime for path in files.values()) * 1000)
    summaries = {Path(name).stem: read_json(path) for name, path in files.items() if name.startswith("metrics/")}
    note = f"Tables and figures of `{experiment}`."
    return Entry(
        name=experiment,
        start=end,
        end=end,
        tags={"mlflow.source.name": "probmetric", "mlflow.note.content": note},
        metrics=[
            (legal_name(f"{method}/{name}"), value, end, 0)
            for method, summary in summaries.items()
            for name, value in summary.items()
            if isinstance(value, int | float)
        ],
        artifacts=files,
    )


def _run_entry(run: RunFolder) -> Entry:
    """Read the run's settings, curves, headline metrics, tags and small files; weights by their digest only."""
    key, end = run.key, int(run.metrics_file.stat().st_mtime * 1000)
    start = end - int(1000 * run.times.get("training/seconds", 0.0))
    environment = flatten({name: run.record.get(name) or {} for name in ("versions", "hardware")})
    encoder, weights = run.find("encoder", default=""), run.weights_file()
    data_digest = str(run.find("data_digest", default=""))
    tags = {
        "mlflow.source.git.commit": environment.pop("versions.git", ""),
        "mlflow.source.name": "probmetric",
        "mlflow.note.content": f"Weights and embeddings: `results/{key.run}/` in the repository.",
        "probmetric.dataset": _dataset(key),
        "probmetric.noise": noise_text(key.data),
        "probmetric.method": key.method,
        "probmetric.seed": str(key.seed),
        "probmetric.fidelity": run.fidelity,
        "probmetric.data_digest": data_digest,
        "probmetric.encoder": encoder if encoder != key.run else "",  # named where it is another run's
        "probmetric.weights": f"sha256:{sha256_file(weights)}" if weights.exists() else "",
    }
    return Entry(
        name=" ".join([key.variant, f"seed{key.seed}", *key.data.split("+")[1:]]),
        start=start,
        end=end,
        params=_texts(_changed(run.record["settings"]) | {"noise": noise_text(key.data), "overrides": key.overrides}),
        tags=_texts(tags | {f"environment.{name}": value for name, value in environment.items()}),
        metrics=[*_curves(run, start), *_headlines(run, end)],
        artifacts=run.text_files,
        dataset=(key.data, data_digest[:36]) if data_digest else None,
    )


def _changed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key, without settings of training and evaluation that have their default."""
    groups = {"training": Training(), "evaluation": Evaluation()}
    defaults = flatten({name: group.model_dump(mode="json") for name, group in groups.items()})
    return {name: value for name, value in flatten(settings).items() if name not in defaults or defaults[name] != value}


def _curves(run: RunFolder, start: int) -> Iterable[Point]:
    now = float(start)
    for row in run.history:
        now += 1000 * (row.get("seconds") or 0.0)
        for name in _CURVES:
            value = row.get(name)
            if value is not None and math.isfinite(value):
                yield f"by_epoch/{name}", value, int(now), int(row.get("epoch") or 0)


def _headlines(run: RunFolder, end: int) -> Iterable[Point]:
    training = run.find("training", default={})
    numbers = {f"training/{name}": value for name, value in training.items() if isinstance(value, int | float)}
    for name, value in (numbers | run.metrics).items():
        if value is not None and math.isfinite(value) and is_headline(name):
            yield legal_name(name), float(value), end, 0


def families(children: Iterable[Run]) -> dict[str, list[Run]]:
    """Group the store's finished runs by row of a table; return name of the parent -> runs, ordered by seed."""
    several: dict[str, list[Run]] = defaultdict(list)
    for child in sorted(children, key=lambda child: (_key(child).seed, child.info.run_id)):
        several[f"{_key(child).group}/{_key(child).variant}"].append(child)
    return several


def members_of(run: Run) -> frozenset[str]:
    """Return the tags of the reports that a run of the store belongs to."""
    return frozenset(tag for tag in run.data.tags if tag.startswith(MEMBER_TAG))


def family_digest(children: Sequence[Run]) -> str:
    """Return the identity of the content of these runs' parent."""
    shown = [(child.data.tags[RUN_TAG], child.data.tags[DIGEST_TAG], sorted(members_of(child))) for child in children]
    return digest_of({"view": _VIEW, "children": shown})


def parent_entry(children: Sequence[Run]) -> Entry:
    """Return the parent of runs that differ in their seed, or in the split of their classes."""
    key, splits = _key(children[0]), defaultdict(list)
    for child in children:
        splits[_key(child).class_split].append(child)
    numbers = sorted({_key(child).seed for child in children})
    seeds, count = ", ".join(map(str, numbers)), f"{len(numbers)} seed{'s' if len(numbers) > 1 else ''}"
    count += f" of {len(splits)} splits" if len(splits) > 1 else ""
    end = max(child.info.end_time for child in children)
    members = frozenset().union(*map(members_of, children))
    shared = set.intersection(*(set(child.data.metrics) for child in children))
    names = sorted(name for name in shared if not name.startswith("by_epoch/"))
    tags = {
        KIND_TAG: "method",
        "probmetric.dataset": _dataset(key),
        "probmetric.noise": noise_text(key.data),
        "probmetric.method": key.method,
        "mlflow.source.name": "probmetric",
        "mlflow.note.content": f"Means over {count}: {seeds}. The runs are folded below.",
    }
    return Entry(
        name=" ".join([key.variant, *key.group.split("+")[1:], f"({count})"]),
        start=min(child.info.start_time for child in children),
        end=end,
        params=_texts({"noise": noise_text(key.data), "overrides": key.overrides, "seeds": seeds}),
        tags=_texts(tags | dict.fromkeys(sorted(members), "true")),
        metrics=[
            (name, fmean(fmean(child.data.metrics[name] for child in split) for split in splits.values()), end, 0)
            for name in names
        ],
    )


def _dataset(key: RunKey) -> str:
    """Return a run's dataset without label noise and split of the classes."""
    return split_data_name(key.group)[0]


def _key(child: Run) -> RunKey:
    return RunKey.parse(child.data.tags[RUN_TAG])


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as text of bounded length under legal names, without empty ones."""
    return {legal_name(k): str(v)[:_LONGEST_TEXT] for k, v in values.items() if v is not None and v not in ("", [], {})}
