"""Read, check and write the files of a run's folder; list which step writes each. No other module names them.

results/<dataset>[+noise<rate>]/<method>[+key=value...]/seed<k>/
    model.safetensors       weights selected on the validation split, named encoder.* and loss.*
    model_last.safetensors  weights of the last epoch
    history.csv             one row per epoch
    encoder.yaml            how the weights were made: settings, data digest, versions, hardware
    posterior.safetensors   where the uncertainty is fitted
    embeddings/             <split>.safetensors for val, test, ood and last, and timing.json
    metrics.json            metric -> value, null if it is not defined
    curves.json             curves of the evaluation by name
    matches.safetensors     the match record: the answer to each query, how near, how sure, and whether it is right
    run.yaml                the record of the finished run
    certificate.json        a threshold below which answers are right often enough, if one was requested
    certificate.md          certificate.json in words
    made/<step>.json        ingredients of the files of each step
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from probmetric.io import (
    FileError,
    content_digest,
    json_in,
    open_tensors,
    present,
    read_csv,
    read_json,
    read_tensors,
    read_yaml,
    remembered_json,
    tensor_metadata,
    write_json,
    write_tensors,
    write_text,
    write_yaml,
)
from probmetric.runs.names import RESULTS, RunKey

if TYPE_CHECKING:
    import numpy as np
    import torch

Step = Literal["train", "fit", "embed", "evaluate"]
STEPS: tuple[Step, ...] = ("train", "fit", "embed", "evaluate")
Which = Literal["selected", "last"]
Split = Literal["val", "test", "ood", "last"]
TINY = 1e-9
RERUN = "delete the run folder and run the workflow again"


@dataclass(frozen=True)
class Embeddings:
    """One embeddings file: arrays by name, the metadata strings, and its path."""

    tensors: dict[str, np.ndarray]
    metadata: dict[str, str]
    path: Path = Path("embeddings")

    def __getitem__(self, name: str) -> np.ndarray:
        return self.tensors[name]

    def said(self, name: str, kind: Any, default: Any) -> Any:
        """Return the JSON of type `kind` that the metadata hold under `name`, or `default` if they hold none.

        Raises:
            FileError: the JSON is damaged.
        """
        return json_in(self.metadata[name], self.path, RERUN, kind) if name in self.metadata else default


@dataclass(frozen=True)
class _File:
    """An attribute of a run's folder: the path of its file `name`."""

    name: str

    def __get__(self, folder: RunFolder, _owner: object) -> Path:
        return folder.path / self.name


class RunFolder:
    """The files of one run; each is read when it is needed, and written whole or not at all."""

    def __init__(self, path: str | Path) -> None:
        """Open the folder at `path` without reading files."""
        self.path = Path(path)

    history_file = _File("history.csv")
    encoder_file = _File("encoder.yaml")
    posterior_file = _File("posterior.safetensors")
    timing_file = _File("embeddings/timing.json")
    metrics_file = _File("metrics.json")
    curves_file = _File("curves.json")
    matches_file = _File("matches.safetensors")
    certificate_file = _File("certificate.json")
    certificate_page = _File("certificate.md")
    record_file = _File("run.yaml")

    def weights_file(self, which: Which = "selected") -> Path:
        """Return the file of the weights selected on the validation split, or of those of the last epoch."""
        return self.path / {"selected": "model.safetensors", "last": "model_last.safetensors"}[which]

    def embeddings_file(self, split: Split) -> Path:
        """Return embeddings of a split; "last" is the test split with the last weights."""
        return self.path / "embeddings" / f"{split}.safetensors"

    @property
    def text_files(self) -> dict[str, Path]:
        """Name -> path of the small files that are there: record, metrics, curves, history."""
        files = (self.record_file, self.metrics_file, self.curves_file, self.history_file)
        return {file.name: file for file in files if present(file)}

    def step_files(self, step: Step) -> tuple[Path, ...]:
        """Return every file a step writes."""
        splits: tuple[Split, ...] = ("val", "test", "ood", "last")
        files: dict[Step, tuple[Path, ...]] = {
            "train": (self.weights_file("selected"), self.weights_file("last"), self.history_file, self.encoder_file),
            "fit": (self.posterior_file,),
            "embed": (*map(self.embeddings_file, splits), self.timing_file),
            "evaluate": (self.metrics_file, self.curves_file, self.matches_file, self.record_file),
        }
        return files[step]

    def step_results(self, step: Step) -> tuple[Path, ...]:
        """Return the files of a step that later steps use; its other files hold times, versions and settings."""
        aside = (self.history_file, self.encoder_file, self.timing_file, self.record_file)
        return tuple(file for file in self.step_files(step) if file not in aside)

    def made_file(self, step: Step) -> Path:
        """Return the path of a step's record, which names the ingredients of its files (`probmetric.runs.made`)."""
        return self.path / "made" / f"{step}.json"

    @property
    def trained(self) -> bool:
        """Whether the encoder is trained: its record, which is written last, exists."""
        return present(self.encoder_file)

    @property
    def finished(self) -> bool:
        """Whether the run was evaluated: it has metrics.json."""
        return present(self.metrics_file)

    @classmethod
    def named(cls, run: str, results: Path = RESULTS) -> RunFolder:
        """Return the folder of the run `<dataset>/<method>/seed<k>`."""
        return cls(results / run)

    @functools.cached_property
    def key(self) -> RunKey:
        """Name of the run, read from its path."""
        return RunKey.parse(self.path)

    def _unchanged(self, file: Path) -> Path:
        """Return `file` if its content is what its step wrote, by the step's record.

        Raises:
            FileError: the file is missing or its content differs.
        """
        written = self._noted(file)
        if written is not None and content_digest(file) != written:
            raise FileError(
                f"{file} is not as {self._step_of(file)} wrote it: damaged or edited; restore it, or {RERUN}."
            )
        return file

    def _step_of(self, file: Path) -> Step:
        return next(step for step in STEPS if file in self.step_files(step))

    def _noted(self, file: Path) -> Any:
        """Return the digest of `file` in the record of the step that wrote it; None without such an entry."""
        made = remembered_json(self.made_file(self._step_of(file)))
        noted = made.get("files") if isinstance(made, dict) else None
        return noted.get(file.name) if isinstance(noted, dict) else None

    def digest_of(self, file: Path) -> Any:
        """Return the digest of a step's file; if the file was not kept, take it from the step's record."""
        return content_digest(file) if present(file) else self._noted(file)

    # ---- training -------------------------------------------------------------------------------------------------

    @functools.cached_property
    def encoder(self) -> dict[str, Any]:
        """How the encoder was trained (`encoder.yaml`)."""
        record = read_yaml(self._unchanged(self.encoder_file))
        return _whole(record, self.encoder_file, "settings", "encoder", "training")

    def weights(self, which: Which = "selected") -> dict[str, torch.Tensor]:
        """Return the weights by name, `encoder.*` and `loss.*`."""
        return read_tensors(self._unchanged(self.weights_file(which)), framework="torch")[0]

    @functools.cached_property
    def history(self) -> list[dict[str, float | None]]:
        """Rows of `history.csv` as numbers; empty for a run without training of its own."""
        if not present(self._unchanged(self.history_file)):
            return []
        names, rows = read_csv(self.history_file, RERUN)
        _whole(dict.fromkeys(names), self.history_file, "epoch")
        return [{name: _number(text, self.history_file) for name, text in row.items()} for row in rows]

    def write_training(
        self,
        selected: Mapping[str, torch.Tensor],
        last: Mapping[str, torch.Tensor],
        history: Sequence[Mapping[str, Any]],
        record: Mapping[str, Any],
        columns: Sequence[str],
    ) -> None:
        """Write the results of training, the record last: if it exists, the others are complete and belong to it.

        Args:
            selected: weights chosen on the validation split.
            last: weights of the last epoch.
            history: one row per epoch.
            record: content of encoder.yaml.
            columns: columns of a history without rows.
        """
        self.encoder_file.unlink(missing_ok=True)
        facts = record["training"]
        write_tensors(self.weights_file("last"), last, {"epoch": str(facts["epochs"] - 1)})
        write_tensors(self.weights_file("selected"), selected, {"epoch": str(facts["selected_epoch"])})
        write_text(self.history_file, _csv(history, columns))
        write_yaml(self.encoder_file, record)

    # ---- uncertainty and embeddings -------------------------------------------------------------------------------

    def posterior(self) -> dict[str, torch.Tensor]:
        """Return the fitted posterior's tensors by name."""
        return read_tensors(self._unchanged(self.posterior_file), framework="torch")[0]

    def write_posterior(self, posterior: Mapping[str, torch.Tensor], uncertainty: str) -> None:
        """Write the fitted posterior of the uncertainty with this name."""
        write_tensors(self.posterior_file, posterior, {"uncertainty": uncertainty})

    def embeddings(self, split: Split) -> Embeddings:
        """Return the embeddings of a split, checked.

        Raises:
            FileError: the file is missing or damaged, or lacks a tensor that every embeddings file has; tensors differ
                in length; or a number is not finite.
        """
        path = self.embeddings_file(split)
        tensors, metadata = read_tensors(self._unchanged(path))
        missing = [name for name in ("mean", "uncertainty", "label", "index") if name not in tensors]
        if missing:
            raise FileError(f"{path} lacks {', '.join(missing)}; delete it and run the embed step again.")
        _check_embeddings(path, tensors)
        return Embeddings(tensors, metadata, path)

    def tensors(self, split: Split, *names: str) -> dict[str, np.ndarray]:
        """Read those of the tensors `names` that the embeddings of `split` hold, and no others."""
        with self._open_embeddings(split) as file:
            held = file.keys() if file else ()
            return {name: file.get_tensor(name) for name in names if name in held}

    def holds(self, split: Split, *names: str) -> bool:
        """Say whether the embeddings of `split` have all tensors `names`."""
        with self._open_embeddings(split) as file:
            return file is not None and set(names) <= set(file.keys())

    def metadata(self, split: Split) -> dict[str, str]:
        """Return metadata of the embeddings of `split`; empty if there is no such file."""
        with self._open_embeddings(split) as file:
            return tensor_metadata(file) if file else {}

    def write_embeddings(self, split: Split, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
        """Write the embeddings of a split."""
        write_tensors(self.embeddings_file(split), tensors, metadata)

    def write_timing(self, timing: Mapping[str, float]) -> None:
        """Write the times of embedding, named like metrics."""
        write_json(self.timing_file, timing)

    @contextlib.contextmanager
    def _open_embeddings(self, split: Split) -> Iterator[Any]:
        """Open the embeddings file; yield None if there is none."""
        path = self.embeddings_file(split)
        if not present(path):
            yield None
            return
        with open_tensors(self._unchanged(path), fix=RERUN) as file:
            yield file

    # ---- evaluation -----------------------------------------------------------------------------------------------

    @functools.cached_property
    def metrics(self) -> dict[str, float | None]:
        """Metric name -> value; None if the metric is not defined for this run."""
        self._unchanged(self.metrics_file)
        return self.read_metrics()

    def read_metrics(self) -> dict[str, float | None]:
        """Read metrics.json without comparing it with a record, which does not exist yet."""
        metrics: dict[str, float | None] = read_json(self.metrics_file, RERUN, dict[str, float | int | None])
        return metrics

    @functools.cached_property
    def curves(self) -> dict[str, Any]:
        """Curves of the evaluation by name; empty if none were written."""
        if not present(self._unchanged(self.curves_file)):
            return {}
        curves: dict[str, Any] = read_json(self.curves_file, RERUN, dict[str, dict[str, list[Any]]])
        return curves

    @functools.cached_property
    def record(self) -> dict[str, Any]:
        """The resolved configuration with versions, hardware and data digest (`run.yaml`)."""
        return _whole(read_yaml(self._unchanged(self.record_file)), self.record_file, "run", "settings")

    def matches(self) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, str]]:
        """Read the match record: set of queries (`test`, `val`, `ood/<set>`) -> name -> (Q,), and metadata.

        Raises:
            FileError: the file is missing or damaged.
        """
        if not present(self.matches_file):
            raise FileError(f"{self.matches_file} is missing; run the evaluate step.")
        tensors, metadata = read_tensors(self._unchanged(self.matches_file))
        matches: dict[str, dict[str, np.ndarray]] = {}
        for name, values in tensors.items():
            where, _, what = name.partition(":")
            matches.setdefault(where, {})[what] = values
        return matches, metadata

    def write_matches(self, matches: Mapping[str, Mapping[str, np.ndarray]], metadata: Mapping[str, str]) -> None:
        """Write the match record, in the form that `matches` returns."""
        tensors = {f"{where}:{name}": values for where, record in matches.items() for name, values in record.items()}
        write_tensors(self.matches_file, tensors, metadata)

    def write_evaluation(self, metrics: Mapping[str, Any], curves: Mapping[str, Any], record: Any) -> None:
        """Write record and curves, then the metrics: if these exist, the run is finished."""
        write_yaml(self.record_file, record)
        write_json(self.curves_file, curves)
        write_json(self.metrics_file, metrics)

    @property
    def times(self) -> dict[str, float]:
        """Times of training and embedding; empty if the run did not train and its embedding was not timed.

        The mean leaves out the first epoch, which also starts workers and compiles.
        """
        times: dict[str, float] = {}
        seconds = [taken for row in self.history if (taken := row.get("seconds")) is not None]
        if seconds:
            times["training/epoch_seconds"] = fmean(seconds[1:] or seconds)
            times["training/seconds"] = sum(seconds)
            times["training/epochs"] = float(len(seconds))
        if present(self.timing_file):
            times |= read_json(self._unchanged(self.timing_file), RERUN, dict[str, float])
        return times

    def find(self, *names: str, default: Any = None) -> Any:
        """Return the first entry of the record under one of the dotted `names`."""
        for name in names:
            value: Any = self.record
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return default

    @property
    def fidelity(self) -> str:
        """`corrected` or `as_published`."""
        return str(self.find("fidelity", "settings.fidelity", default="corrected"))


def finished_runs(runs: Iterable[str | Path | RunFolder]) -> list[RunFolder]:
    """Return the runs that have metrics.json, in the order of their names, each once."""
    opened = (run if isinstance(run, RunFolder) else RunFolder(run) for run in runs)
    finished = {run.key: run for run in opened if run.finished}
    return sorted(finished.values(), key=lambda run: run.key)


def validations(history: Iterable[Mapping[str, float | None]]) -> list[float]:
    """Return the validation metric of every epoch that has one."""
    return [value for row in history if (value := row.get("val_metric")) is not None]


def late_gain(history: Iterable[Mapping[str, float | None]]) -> float | None:
    """Return by how much the best of the last fifth of the epochs exceeds the best before, as a share of it.

    Args:
        history: rows of history.csv; with fewer than five validations the result is None.
    """
    values = validations(history)
    last = max(1, len(values) // 5)
    if len(values) < 5:
        return None
    before, after = max(values[:-last]), max(values[-last:])
    return (after - before) / max(abs(before), TINY)


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as dotted keys: `{"loss": {"scale": 32}}` -> `{"loss.scale": 32}`."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(item, Mapping):
            flat |= flatten(item, name)
        else:
            flat[name] = item
    return flat


def _whole(values: Any, path: Path, *names: str) -> dict[str, Any]:
    """Check that `values` of a file hold the entries `names`, since truncated YAML and CSV are often still valid."""
    if not isinstance(values, dict):
        raise FileError(f"{path} is damaged (expected names with values, found {type(values).__name__}); {RERUN}.")
    missing = [name for name in names if name not in values]
    if missing:
        raise FileError(f"{path} is damaged or cut short (it lacks {', '.join(missing)}); {RERUN}.")
    return values


def _check_embeddings(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    import numpy as np

    count = len(tensors["mean"])
    for name, values in tensors.items():
        if len(values) != count:
            raise FileError(f"{path}: {name} has {len(values)} rows, mean has {count}; run the embed step again.")
        bad = np.argwhere(~np.isfinite(values))
        if bad.size:
            raise FileError(f"{path}: {name} of row {bad[0][0]} is not finite; mend the run, then embed again.")


def _csv(rows: Sequence[Mapping[str, Any]], head: Sequence[str]) -> str:
    """Return rows as CSV; columns in the order they first appear, empty if a row lacks one; `head` without rows."""
    columns = list(dict.fromkeys(key for row in rows for key in row)) or list(head)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _number(text: str | None, path: Path) -> float | None:
    if text is None or text == "":
        return None
    try:
        return float(text)
    except ValueError:
        raise FileError(f"{path}: {text!r} is not a number; {RERUN}.") from None
