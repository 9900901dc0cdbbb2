"""The MLflow store through its public client: write new runs, replace changed ones, leave the others."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from probmetric.config import check_store
from probmetric.errors import nearest
from probmetric.io import FileError, alone
from probmetric.tracking.entries import (
    DIGEST_TAG,
    KIND_TAG,
    MEMBER_TAG,
    PARENT_TAG,
    REPORTS,
    RUN_TAG,
    Entry,
    Source,
    families,
    family_digest,
    members_of,
    parent_entry,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

KINDS = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "file", "databricks", "databricks-uc")
PLUGINS = "mlflow.tracking_store"  # entry points of installed packages that add kinds
LIVE_TAG = "probmetric.live"
CHILD_OF = "mlflow.parentRunId"
_TRAINS = {"mlflow.experimentKind": "custom_model_development"}  # the UI then shows training runs, not chat traces
_METRICS_PER_BATCH, _PARAMS_PER_BATCH = 800, 100  # MLflow takes 1,000 of all kinds together

VIEW, RUNS_VIEW = "probmetric", "probmetric-runs"
VIEW_TAG, _NOTE = "mlflow.sharedViewState.", "mlflow.note.content"
_COLUMNS = (
    *("retrieval/recall_at_1", "retrieval/map_at_r", "sparsification/error_auroc", "trust/added", "p_right/ece"),
    *("calibration/ece", "training/seconds"),
)
_FILTERS = {VIEW: f"tags.`{KIND_TAG}` = 'method'", RUNS_VIEW: f"tags.`{RUN_TAG}` LIKE '%'"}
_FOLDED = "#/experiments/{}/runs?workflowType=machine_learning"


def is_local(store_uri: str) -> bool:
    """Return whether the store is a database or folder here, not a tracking server."""
    return not store_uri.startswith(("http://", "https://", "databricks"))


def check_place(store_uri: str, artifact_root: str | Path) -> None:
    """Refuse the address of a store that cannot work here, without contacting a server or another database.

    Raises:
        FileError: MLflow has no such kind of store, the address lacks a host or file, or something is in its way.
    """
    parts = urlsplit(store_uri)
    kind, kinds = parts.scheme.partition("+")[0], [*KINDS, *(point.name for point in entry_points(group=PLUGINS))]
    database = Path(parts.path[1:]).resolve() if kind == "sqlite" else None
    folders = [Path(artifact_root).resolve(), *([database.parent] if database else [])]
    reason = next((reason for folder in folders if (reason := _in_the_way(folder))), "") if is_local(store_uri) else ""
    if kind not in kinds and store_uri not in kinds:
        reason = f"{kind or store_uri!r} is no kind of store: {nearest(kind, kinds)}"
    elif kind in ("http", "https") and not parts.hostname:
        reason = "it names no server"
    elif database and (database.is_dir() or parts.netloc):
        reason = f"{database} is no file"
    elif not reason and database and database.exists() and not os.access(database, os.W_OK):
        reason = f"{database} may not be written"
    if reason:
        raise FileError(
            f"the MLflow store {store_uri} cannot be written: {reason}. Name another place in params.yaml, such as "
            "tracking.store: sqlite:///mlflow.db and tracking.artifacts: mlartifacts; or a server, http://host:5000."
        )


def _in_the_way(folder: Path) -> str:
    """Return why a folder can neither be written nor made, or "" if it can."""
    there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    if not there.is_dir():
        return f"{there} is no folder"
    if os.access(there, os.W_OK | os.X_OK):
        return ""
    return f"nothing may be written in {there}" + " (a read-only disk)" * bool(os.statvfs(there).f_flag & os.ST_RDONLY)


@contextlib.contextmanager
def opened(store_uri: str, artifact_root: Path) -> Iterator[MlflowClient]:
    """Open the store for one writer: lock it, check that it can be written or answers, and silence MLflow.

    Raises:
        FileError: the store cannot be opened; the message says why and what to do.
    """
    try:
        check_store(store_uri)
    except ValueError as error:
        raise FileError(str(error)) from None
    check_place(store_uri, artifact_root)
    database = Path(store_uri.removeprefix("sqlite:///")).resolve() if store_uri.startswith("sqlite:///") else None
    address = f"sqlite:///{database}" if database else store_uri  # absolute: MLflow caches open stores by address
    with (
        quiet_mlflow(),
        alone(database or artifact_root, "writes to the MLflow store"),  # two migrations at once break the database
        readable_errors(store_uri),
    ):
        from mlflow import MlflowClient

        if database and database.exists():
            _check_writable(database)
        with patience(8, 0):
            client = MlflowClient(tracking_uri=address, registry_uri=address)
            client.search_experiments(max_results=1)
        with patience(30, 2):
            yield client


@contextlib.contextmanager
def patience(seconds: int, retries: int) -> Iterator[None]:
    """Set MLflow's timeout in `seconds` and its number of `retries`, unless the user's environment sets them."""
    limits = {"MLFLOW_HTTP_REQUEST_TIMEOUT": str(seconds), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(retries)}
    added = {name: value for name, value in limits.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextlib.contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Silence telemetry, messages of migrations and printed addresses; enter it before importing MLflow.

    Raises:
        FileError: MLflow cannot read an environment variable.
    """
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"):
        os.environ.setdefault(name, "true")
    try:
        from mlflow import environment_variables as variables  # MLflow sets its own log level when imported

        for name in sorted(name for name in os.environ if name.startswith("MLFLOW_") and hasattr(variables, name)):
            getattr(variables, name).get()
    except ValueError as error:
        raise FileError(f"MLflow cannot read the environment: {error}. Correct or unset that variable.") from None
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)  # errors are raised as well, and turned into messages
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _check_writable(database: Path) -> None:
    """Check that an SQLite file can be written, because MLflow would retry for more than a minute."""
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SELECT count(*) FROM sqlite_master")
        connection.rollback()


@contextlib.contextmanager
def readable_errors(store_uri: str) -> Iterator[None]:
    """Turn errors of MLflow, SQLAlchemy, SQLite and the file system into a `FileError` that says what to do."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
        first = str(error).strip().splitlines()[0].rstrip(".")
        raise FileError(
            f"the MLflow store {store_uri} cannot be written or read: {first}. The results are safe in their files; "
            "mend or remove the store and run `probmetric track` again: it is rebuilt from them."
        ) from error


class Writer:
    """Writes sources to one open store for one experiment.

    Attributes:
        client: the MLflow client.
        artifact_root: folder of the artifacts; None if a tracking server keeps them.
        member: tag of the runs that belong to the experiment.
    """

    def __init__(self, client: MlflowClient, artifact_root: Path | None, member: str) -> None:
        self.client, self.artifact_root, self.member = client, artifact_root, MEMBER_TAG + member

    def write(self, sources: Sequence[Source]) -> dict[str, Any]:
        """Bring the store up to date; return the names written and the number unchanged."""
        written = []
        for name in sorted({source.experiment for source in sources}):
            experiment_id = self.experiment_id(name)
            new = self._bring_up_to_date(experiment_id, [source for source in sources if source.experiment == name])
            if name == REPORTS:
                self._describe(experiment_id, "Tables and figures of the experiments, one run for each.")
            else:
                self._keep_parents(experiment_id)
                self._keep_views(experiment_id, name)
            written += new
        return {"written": written, "unchanged": len(sources) - len(written)}

    def _bring_up_to_date(self, experiment_id: str, sources: Sequence[Source]) -> list[str]:
        """Write new sources, replace changed ones, and return the names written."""
        stored: dict[str, list[Run]] = defaultdict(list)  # several after an interruption, or with a live run
        for run in self._runs(experiment_id):
            stored[run.data.tags.get(RUN_TAG) or run.data.tags.get(LIVE_TAG, "")].append(run)
        stored.pop("", None)
        written = []
        for source in sources:
            old = stored.pop(source.run, [])
            current = next((run for run in old if run.data.tags.get(DIGEST_TAG) == source.digest), None)
            if current is None:
                members = {self.member}.union(*map(members_of, old))
                tags = dict.fromkeys(members, "true") | {RUN_TAG: source.run}
                self._create(experiment_id, source.read(), tags, source.digest)
                written.append(source.run)
            elif self.member not in current.data.tags:
                self.client.set_tag(current.info.run_id, self.member, "true")
            self._delete(run for run in old if run is not current)
        for run in (run for runs in stored.values() for run in runs if self.member in run.data.tags):
            self.client.delete_tag(run.info.run_id, self.member)
        return written

    def _keep_parents(self, experiment_id: str) -> None:
        """Put every finished run below an up-to-date parent; delete outdated parents."""
        runs = self._runs(experiment_id)
        finished = [run for run in runs if RUN_TAG in run.data.tags and DIGEST_TAG in run.data.tags]
        parents = [run for run in runs if PARENT_TAG in run.data.tags]
        ids = {(run.data.tags.get(DIGEST_TAG), run.data.tags[PARENT_TAG]): run.info.run_id for run in parents}
        kept = set()
        for name, children in families(finished).items():
            digest = family_digest(children)
            parent = ids.get((digest, name))
            if parent is None:
                parent = self._create(experiment_id, parent_entry(children), {PARENT_TAG: name}, digest)
            kept.add(parent)
            for child in children:
                if child.data.tags.get(CHILD_OF) != parent:
                    self.client.set_tag(child.info.run_id, CHILD_OF, parent)
        self._delete(run for run in parents if run.info.run_id not in kept)

    def _create(self, experiment_id: str, entry: Entry, tags: Mapping[str, str], digest: str) -> str:
        """Write a run and return its id. The digest comes last, so that an interrupted run is written again."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

        run = self.client.create_run(experiment_id, entry.start, {**entry.tags, **tags}, entry.name)
        run_id = str(run.info.run_id)
        for name, path in entry.artifacts.items():
            folder = str(Path(name).parent)
            self.client.log_artifact(run_id, str(path), None if folder == "." else folder)
        if entry.dataset:
            name, data_digest = entry.dataset
            dataset = Dataset(name, data_digest, source_type="dvc", source=json.dumps({"stage": name}))
            self.client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
        self.client.set_terminated(run_id, end_time=entry.end)
        metrics = [Metric(*point) for point in entry.metrics]
        params = [Param(*item) for item in entry.params.items()]
        count = max(1, -(-len(metrics) // _METRICS_PER_BATCH), -(-len(params) // _PARAMS_PER_BATCH))
        for batch in range(count):
            some = metrics[batch * _METRICS_PER_BATCH : (batch + 1) * _METRICS_PER_BATCH]
            few = params[batch * _PARAMS_PER_BATCH : (batch + 1) * _PARAMS_PER_BATCH]
            self.client.log_batch(run_id, some, few, [RunTag(DIGEST_TAG, digest)] if batch == count - 1 else [])
        return run_id

    def _delete(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self.client.delete_run(run.info.run_id)
            if self.artifact_root:
                name = self.client.get_experiment(run.info.experiment_id).name
                shutil.rmtree(self.artifact_root / name / run.info.run_id, ignore_errors=True)

    def experiment_id(self, name: str) -> str:
        """Return MLflow's id of the experiment; make or restore the experiment if necessary.

        The store finds artifacts by the address of their folder. If this address is wrong because the repository was
        moved, a new experiment takes the name, and all its runs are written again.
        """
        from mlflow.exceptions import MlflowException

        location = (self.artifact_root / name).resolve().as_uri() if self.artifact_root else None
        experiment = self.client.get_experiment_by_name(name)
        if experiment and experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        if experiment and location and experiment.artifact_location != location:
            self.client.rename_experiment(
                experiment.experiment_id, f"{name} before it was moved {experiment.experiment_id}"
            )
            self.client.delete_experiment(experiment.experiment_id)
            experiment = None
        if experiment is None:
            try:
                return str(self.client.create_experiment(name, location, _TRAINS))
            except MlflowException:
                # Another process made it meanwhile on a shared server.
                experiment = self.client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def _runs(self, experiment_id: str) -> list[Run]:
        """Return the runs that are not deleted."""
        page = self.client.search_runs([experiment_id], max_results=1000)
        runs = list(page)
        while page.token:
            page = self.client.search_runs([experiment_id], max_results=1000, page_token=page.token)
            runs += page
        return runs

    def _describe(self, experiment_id: str, note: str) -> None:
        """Describe an experiment by `note`, unless it has a description. Words come first: lists show its beginning."""
        if _NOTE not in self.client.get_experiment(experiment_id).tags:
            self.client.set_experiment_tag(experiment_id, _NOTE, note)

    def _keep_views(self, experiment_id: str, dataset: str) -> None:
        """Put the views of a dataset's run table into the store, unless they are there, and link to them.

        MLflow keeps the columns that a user chose in the user's browser. A shared view is a tag of the experiment and
        has an address.
        """
        tags = self.client.get_experiment(experiment_id).tags
        for view, shown in _FILTERS.items():
            columns = [*(f"metrics.`{name}`" for name in _COLUMNS), "params.`noise`"]
            state = {"selectedColumns": columns, "orderByKey": columns[0], "orderByAsc": False, "searchFilter": shown}
            if tags.get(VIEW_TAG + view) != json.dumps(state):
                self.client.set_experiment_tag(experiment_id, VIEW_TAG + view, json.dumps(state))
        self._describe(
            experiment_id,
            f"Runs on {dataset}. [Best methods]({view_address(experiment_id)}) (means over seeds), "
            f"[best runs]({view_address(experiment_id, RUNS_VIEW)}), [folded]({_FOLDED.format(experiment_id)}). "
            "Search: ``tags.`probmetric.method` = 'arcface' and params.noise = '0.2'``.",
        )


def view_address(experiment_id: str, view: str = VIEW) -> str:
    """Return the address of a view of an experiment: its methods, or its runs, best first."""
    return f"{_FOLDED.format(experiment_id)}&viewStateShareKey={view}"
