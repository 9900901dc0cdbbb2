"""Results on disk -> MLflow. The files are the truth; the MLflow store is a view of them that can be rebuilt.

One MLflow experiment per dataset and one MLflow run per run folder, found again by the tag `probmetric.run` and
compared by the tag `probmetric.digest`; one more experiment, `reports`, holds the tables and figures. A second call
writes nothing, a changed run replaces its old self, and an empty store is filled with the same content. The digest is
the last thing written, so a run that was interrupted half-way is written again.

All writing happens under one file lock beside the store: several processes may call `track` at once, on a store that
does not exist yet. Artifacts are kept below `artifact_root` and recorded as `mlflow-artifacts:/...`, an address that
the MLflow server resolves against its own `--artifacts-destination`; the repository can be moved.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.io import FileError, digest_of, read_json, sha256_file
from probmetric.reporting._runs import Run, finished_runs, flatten
from probmetric.reporting.aggregate import legal_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

REPORTS = "reports"
RUN_TAG, DIGEST_TAG, MEMBER_TAG = "probmetric.run", "probmetric.digest", "probmetric.experiment."
_RUN_FILES = ("run.yaml", "metrics.json", "curves.json", "history.csv")
_ENVIRONMENT = (
    "versions",
    "hardware",
    "environment",
    "data",
    "data_digest",
    "git",
    "git_commit",
    "started",
    "finished",
)
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # the UI then shows training runs, not chat traces
_METRICS_PER_BATCH, _PARAMS_PER_BATCH, _TEXT = 1000, 100, 5000
_LOCK_SECONDS = 900.0


@dataclass
class _Entry:
    """One MLflow run to be: everything the store will hold of it."""

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


@dataclass(frozen=True)
class _Stored:
    run_id: str
    digest: str
    members: frozenset[str]


def track(
    experiment: str,
    run_folders: Iterable[str | Path],
    report_folder: str | Path,
    *,
    store_uri: str,
    artifact_root: str | Path,
) -> dict[str, Any]:
    """Bring the MLflow store up to date with finished runs and the experiment's report.

    Args:
        experiment: name of the experiment the runs belong to.
        run_folders: its run folders; those without metrics.json are left out.
        report_folder: `reports/<experiment>`; its tables and figures become artifacts.
        store_uri: `sqlite:///mlflow.db`, or the address of a tracking server.
        artifact_root: folder of the artifacts (not used with a tracking server, which has its own).

    Returns:
        What was done: names of the runs written, number of runs found unchanged.

    Raises:
        FileError: the store cannot be written, or another process holds it for too long.
    """
    entries = [_run_entry(run) for run in finished_runs(run_folders)]
    report = _report_entry(experiment, Path(report_folder))
    entries += [report] if report else []
    store_uri = _absolute(store_uri)
    with _quiet_mlflow(), _lock(store_uri, Path(artifact_root)), _readable_errors(store_uri), _one_flush(store_uri):
        _check_database(store_uri)
        writer = _Writer(store_uri, Path(artifact_root), experiment)
        return writer.write(entries)


def ui_command(store_uri: str, port: int, artifact_root: str | Path = "mlartifacts") -> list[str]:
    """Command that serves the MLflow UI for a local store, to this machine only.

    Raises:
        FileError: `store_uri` is a tracking server, which has a UI of its own.
    """
    if not _is_local(store_uri):
        raise FileError(f"{store_uri} is a tracking server; open that address in a browser.")
    settings = ["MLFLOW_DISABLE_TELEMETRY=true", "DO_NOT_TRACK=true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"]
    server = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", store_uri, "--artifacts-destination", str(artifact_root)]
    return ["env", *settings, *server, *store]


# ---- what is written ----------------------------------------------------------------------------------------------


def _run_entry(run: Run) -> _Entry:
    end = int((run.folder / "metrics.json").stat().st_mtime * 1000)
    seconds = [row.get("seconds") or 0.0 for row in run.history]
    start = end - int(1000 * math.fsum(seconds))
    key = run.key
    description = {"dataset": key.dataset, "noise": f"{key.noise:g}", "method": key.method, "seed": str(key.seed)}
    settings = run.settings.get("settings", run.settings)
    chosen = {name: value for name, value in settings.items() if name not in (*_ENVIRONMENT, "data_digest")}
    around = {name: run.settings.get(name) or {} for name in _ENVIRONMENT}
    data_digest = str(run.find("data_digest", "data.digest", "data.sha256", default=""))
    return _Entry(
        experiment=key.dataset,
        run=key.run,
        name=f"{key.variant} seed{key.seed}" + (f" noise{key.noise:g}" if key.noise else ""),
        digest=_digest(run.folder, _RUN_FILES),
        start=start,
        end=end,
        params=_texts({"noise": f"{key.noise:g}", "overrides": key.overrides} | flatten(chosen)),
        tags=_texts(
            {f"probmetric.{name}": value for name, value in description.items()}
            | {f"environment.{name}": value for name, value in flatten(around).items()}
            | {
                "probmetric.fidelity": run.fidelity,
                "probmetric.data_digest": data_digest,
                "probmetric.encoder": run.find("encoder", default=""),
                "mlflow.source.git.commit": run.find("git_commit", "git.commit", "versions.git", default=_git_commit()),
                "mlflow.source.name": "probmetric",
                "mlflow.source.type": "PROJECT",
                "mlflow.note.content": f"Weights and embeddings: `results/{key.run}/` in the repository.",
            }
            | _weights(run.folder)
        ),
        metrics=_run_metrics(run, start, end),
        artifacts={name: run.folder / name for name in _RUN_FILES if (run.folder / name).exists()},
        dataset=(key.data, data_digest[:36]) if data_digest else None,
    )


def _run_metrics(run: Run, start: int, end: int) -> list[tuple[str, float, int, int]]:
    """(name, value, milliseconds, step) of the curves by epoch and of the final metrics."""
    found = []
    now = float(start)
    for row in run.history:
        now += 1000 * (row.get("seconds") or 0.0)
        epoch = int(row.get("epoch") or 0)
        for name, value in row.items():
            if name != "epoch" and value is not None and math.isfinite(value):
                found.append((legal_name(f"by_epoch/{name}"), value, int(now), epoch))
    training = run.find("training", default={}) if "settings" in run.settings else {}
    numbers = {f"training/{name}": value for name, value in training.items() if isinstance(value, int | float)}
    for name, value in (numbers | run.metrics).items():
        if value is not None and math.isfinite(value):
            found.append((legal_name(name), float(value), end, 0))
    return found


def _report_entry(experiment: str, folder: Path) -> _Entry | None:
    """The report's tables, figures and page as one run of the experiment `reports`; None without a report."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if _is_result(path)}
    if not files:
        return None
    end = int(max(path.stat().st_mtime for path in files.values()) * 1000)
    summary = read_json(folder / "metrics.json") if "metrics.json" in files else {}
    return _Entry(
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


_REPORT_SUFFIXES = {".csv", ".html", ".json", ".md", ".pdf", ".png", ".tex"}


def _digest(folder: Path, names: Sequence[str]) -> str:
    """Digest of a run: its text files by content, its tensors by name and size (they change with history.csv)."""
    content = {name: sha256_file(folder / name) for name in names if (folder / name).exists()}
    sizes = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*.safetensors"))}
    return digest_of({"content": content, "sizes": sizes})


def _weights(folder: Path) -> dict[str, str]:
    path = folder / "model.safetensors"
    return {"probmetric.weights": f"sha256:{sha256_file(path)}"} if path.exists() else {}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as text of bounded length under legal names; empty ones are left out."""
    return {legal_name(k): str(v)[:_TEXT] for k, v in values.items() if v is not None and v not in ("", [], {})}


def _git_commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""


# ---- writing ------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes entries to one store on behalf of one experiment; the caller holds the lock."""

    def __init__(self, store_uri: str, artifact_root: Path, experiment: str) -> None:
        from mlflow import MlflowClient

        self.client: MlflowClient = MlflowClient(tracking_uri=store_uri, registry_uri=store_uri)
        self.local = _is_local(store_uri)
        self.artifact_root = artifact_root
        self.member = MEMBER_TAG + legal_name(experiment)

    def write(self, entries: Sequence[_Entry]) -> dict[str, Any]:
        ids = {name: self._experiment_id(name) for name in sorted({entry.experiment for entry in entries})}
        stored = {name: self._stored(identity) for name, identity in ids.items()}
        written = []
        for entry in entries:
            known = stored[entry.experiment].pop(entry.run, [])
            if self._is_current(entry, known):
                self._join(known[0])
            else:
                members = frozenset().union(*(old.members for old in known)) | {self.member}
                for old in known:
                    self._delete(entry.experiment, old)
                self._create(entry, ids[entry.experiment], members)
                written.append(entry.run)
        for name in stored:
            self._leave(old for olds in stored[name].values() for old in olds)
        return {"written": written, "unchanged": len(entries) - len(written)}

    def _experiment_id(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is None:
            location = f"mlflow-artifacts:/{name}" if self.local else None
            try:
                return str(self.client.create_experiment(name, artifact_location=location, tags=_KIND))
            except MlflowException:
                # Somebody else's process made it meanwhile on a shared server.
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _stored(self, experiment_id: str) -> dict[str, list[_Stored]]:
        """Name of the run -> what the store holds under it (more than one only after an interruption)."""
        found: dict[str, list[_Stored]] = {}
        token = None
        while True:
            page = self.client.search_runs([experiment_id], max_results=1000, page_token=token)
            for run in page:
                tags = run.data.tags
                members = frozenset(tag for tag in tags if tag.startswith(MEMBER_TAG))
                if name := tags.get(RUN_TAG):
                    entry = _Stored(run.info.run_id, tags.get(DIGEST_TAG, ""), members)
                    found.setdefault(name, []).append(entry)
            token = page.token
            if not token:
                return found

    @staticmethod
    def _is_current(entry: _Entry, known: Sequence[_Stored]) -> bool:
        return len(known) == 1 and known[0].digest == entry.digest

    def _join(self, stored: _Stored) -> None:
        if self.member not in stored.members:
            self.client.set_tag(stored.run_id, self.member, "true")

    def _leave(self, others: Iterable[_Stored]) -> None:
        """Runs that no longer belong to the experiment lose its tag."""
        for stored in others:
            if self.member in stored.members:
                self.client.delete_tag(stored.run_id, self.member)

    def _delete(self, experiment: str, stored: _Stored) -> None:
        self.client.delete_run(stored.run_id)
        if self.local:
            shutil.rmtree(self.artifact_root / experiment / stored.run_id, ignore_errors=True)

    def _create(self, entry: _Entry, experiment_id: str, members: Iterable[str]) -> None:
        tags = entry.tags | dict.fromkeys(members, "true") | {RUN_TAG: entry.run}
        run = self.client.create_run(experiment_id, start_time=entry.start, tags=tags, run_name=entry.name)
        run_id = run.info.run_id
        self._copy_artifacts(entry, run_id)
        self._log(entry, run_id)
        if entry.dataset:
            self._log_dataset(run_id, *entry.dataset)
        self.client.set_terminated(run_id, end_time=entry.end)
        self.client.set_tag(run_id, DIGEST_TAG, entry.digest)

    def _log(self, entry: _Entry, run_id: str) -> None:
        from mlflow.entities import Param

        metrics = [_metric(*item) for item in entry.metrics]
        params = [Param(name, value) for name, value in entry.params.items()]
        for start in range(0, max(1, len(metrics)), _METRICS_PER_BATCH):
            self.client.log_batch(
                run_id,
                metrics=metrics[start : start + _METRICS_PER_BATCH],
                params=params[:_PARAMS_PER_BATCH] if start == 0 else (),
            )
        for start in range(_PARAMS_PER_BATCH, len(params), _PARAMS_PER_BATCH):
            self.client.log_batch(run_id, params=params[start : start + _PARAMS_PER_BATCH])

    def _log_dataset(self, run_id: str, name: str, digest: str) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(name=name, digest=digest, source_type="dvc", source=f'{{"stage": "{name}"}}')
        tags = [InputTag("mlflow.data.context", "training")]
        self.client.log_inputs(run_id, datasets=[DatasetInput(dataset, tags)])

    def _copy_artifacts(self, entry: _Entry, run_id: str) -> None:
        for name, path in entry.artifacts.items():
            if self.local:
                target = self.artifact_root / entry.experiment / run_id / "artifacts" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            else:
                parent = str(Path(name).parent)
                self.client.log_artifact(run_id, str(path), artifact_path=None if parent == "." else parent)


def _metric(name: str, value: float, timestamp: int, step: int) -> Metric:
    from mlflow.entities import Metric

    return Metric(key=name, value=value, timestamp=timestamp, step=step)


def _is_local(store_uri: str) -> bool:
    return not store_uri.startswith(("http://", "https://", "databricks"))


def _absolute(store_uri: str) -> str:
    """The same store whatever the current folder becomes: MLflow keeps open stores by the text of their address."""
    path = store_uri.removeprefix("sqlite:///")
    return store_uri if path == store_uri else f"sqlite:///{Path(path).resolve()}"


@contextlib.contextmanager
def _lock(store_uri: str, artifact_root: Path) -> Iterator[None]:
    """Hold the lock file beside the database (beside the artifacts, where the store is not a local file)."""
    from filelock import FileLock, Timeout

    database = store_uri.removeprefix("sqlite:///") if store_uri.startswith("sqlite:///") else ""
    path = Path(f"{database}.lock" if database else f"{artifact_root}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=_LOCK_SECONDS)
        lock.acquire()
    except Timeout as error:
        raise FileError(
            f"{path} has been held by another process for {_LOCK_SECONDS:.0f} s; is one hanging?"
        ) from error
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; results are safe, the MLflow view is not.") from error
    try:
        yield
    finally:
        lock.release()


def _check_database(store_uri: str) -> None:
    """Try to write to a SQLite file that exists: MLflow would retry for more than a minute before it gives up."""
    import sqlite3

    path = Path(store_uri.removeprefix("sqlite:///"))
    if not store_uri.startswith("sqlite:///") or not path.exists():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=20)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SELECT count(*) FROM sqlite_master")
        connection.rollback()


@contextlib.contextmanager
def _one_flush(store_uri: str) -> Iterator[None]:
    """Flush a SQLite store to the disk once, at the end, instead of after every transaction.

    A power cut meanwhile can cost the store, which is a view and is rebuilt; a killed process cannot.
    """
    if not store_uri.startswith("sqlite:///"):
        yield
        return
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def relax(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", relax)
    try:
        yield
    finally:
        event.remove(Engine, "connect", relax)
        path = Path(store_uri.removeprefix("sqlite:///"))
        if path.exists():
            with path.open("rb+") as file:
                os.fsync(file.fileno())


@contextlib.contextmanager
def _quiet_mlflow() -> Iterator[None]:
    """No telemetry, no migration chatter; set before MLflow is imported."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    import mlflow  # noqa: F401  (sets its own log level when imported)

    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _readable_errors(store_uri: str) -> Iterator[None]:
    import sqlite3

    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
        first = str(error).strip().splitlines()[0].rstrip(".")
        raise FileError(
            f"the MLflow store {store_uri} cannot be written: {first}. The results are safe in their files; mend "
            "or remove the store and run `probmetric track` again: it is rebuilt from them."
        ) from error
