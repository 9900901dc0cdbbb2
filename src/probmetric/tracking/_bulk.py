"""Many new runs into a database at once, by the tables of MLflow's own store.

Its calls for one run take a dozen transactions and as many queries; here the rows of hundreds of runs are one
statement per table. What the rows say is what those calls would have written.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probmetric.tracking._entries import Entry

if TYPE_CHECKING:
    from mlflow import MlflowClient

Rows = dict[str, list[dict[str, Any]]]
_SMALL = 1000


def write_runs(client: MlflowClient, new: Iterable[tuple[Entry, str, str, Mapping[str, str]]]) -> None:
    """Write runs that are finished.

    Args:
        client: of a database.
        new: entry, MLflow experiment id, run id and tags of each.
    """
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import insert, select

    tables = {
        "runs": models.SqlRun,
        "tags": models.SqlTag,
        "params": models.SqlParam,
        "metrics": models.SqlMetric,
        "latest": models.SqlLatestMetric,
        "datasets": models.SqlDataset,
        "inputs": models.SqlInput,
        "input_tags": models.SqlInputTag,
    }
    rows: Rows = defaultdict(list)
    store: Any = client._tracking_client.store
    with store.ManagedSessionMaker(read_only=False) as session:
        known = session.execute(
            select(*(getattr(models.SqlDataset, name) for name in ("experiment_id", "name", "digest", "dataset_uuid")))
        )
        datasets = {(experiment, name, digest): number for experiment, name, digest, number in known}
        for entry, experiment, run_id, tags in new:
            _add_run(rows, entry, experiment, run_id, tags)
            if entry.dataset:
                _add_dataset(rows, datasets, entry.dataset, int(experiment), run_id)
        for name, table in tables.items():
            for start in range(0, len(rows[name]), _SMALL):
                session.execute(insert(table), rows[name][start : start + _SMALL])


def read_tags(client: MlflowClient, experiment_id: str, prefixes: Iterable[str]) -> dict[str, dict[str, str]]:
    """Run id -> those of its tags that start so, of the runs of an experiment that are not deleted."""
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
    from sqlalchemy import or_, select

    wanted = (
        select(SqlTag.run_uuid, SqlTag.key, SqlTag.value)
        .join(SqlRun, SqlRun.run_uuid == SqlTag.run_uuid)
        .where(SqlRun.experiment_id == int(experiment_id), SqlRun.lifecycle_stage == "active")
        .where(or_(*(SqlTag.key.startswith(prefix) for prefix in prefixes)))
    )
    found: dict[str, dict[str, str]] = defaultdict(dict)
    store: Any = client._tracking_client.store
    with store.ManagedSessionMaker(read_only=True) as session:
        for run_id, key, value in session.execute(wanted):
            found[run_id][key] = value
    return found


def read_results(client: MlflowClient, run_ids: Sequence[str]) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Start, end (milliseconds) and the last value of every metric, of each run."""
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlRun
    from sqlalchemy import select

    store: Any = client._tracking_client.store
    times = (SqlRun.run_uuid, SqlRun.start_time, SqlRun.end_time)
    metrics = (SqlLatestMetric.run_uuid, SqlLatestMetric.key, SqlLatestMetric.value)
    with store.ManagedSessionMaker(read_only=True) as session:
        for start in range(0, len(run_ids), _SMALL):
            some = run_ids[start : start + _SMALL]
            values: dict[str, dict[str, float]] = defaultdict(dict)
            for run_id, key, value in session.execute(select(*metrics).where(SqlLatestMetric.run_uuid.in_(some))):
                values[run_id][key] = value
            for run_id, started, ended in session.execute(select(*times).where(SqlRun.run_uuid.in_(some))):
                yield started, ended, values[run_id]


def set_tags(client: MlflowClient, key: str, values: Mapping[str, str]) -> None:
    """Give runs a tag, in place of the one they may have: run id -> value."""
    from mlflow.store.tracking.dbmodels.models import SqlTag
    from sqlalchemy import delete, insert

    rows = [{"key": key, "value": value, "run_uuid": run_id} for run_id, value in values.items()]
    store: Any = client._tracking_client.store
    with store.ManagedSessionMaker(read_only=False) as session:
        for start in range(0, len(rows), _SMALL):
            some = rows[start : start + _SMALL]
            old = SqlTag.run_uuid.in_([row["run_uuid"] for row in some])
            session.execute(delete(SqlTag).where(SqlTag.key == key, old))
            session.execute(insert(SqlTag), some)


def pack(client: MlflowClient) -> None:
    """Let an SQLite file fill its pages: half-empty ones are a sixth of it after many insertions."""
    store: Any = client._tracking_client.store
    if store.engine.dialect.name == "sqlite":
        with store.engine.connect() as connection:
            connection.connection.driver_connection.execute("VACUUM")


def _add_run(rows: Rows, entry: Entry, experiment: str, run_id: str, tags: Mapping[str, str]) -> None:
    rows["runs"].append(
        {
            "run_uuid": run_id,
            "name": entry.name,
            "source_type": "UNKNOWN",
            "source_name": "",
            "entry_point_name": "",
            "user_id": "unknown",
            "status": "FINISHED",
            "start_time": entry.start,
            "end_time": entry.end,
            "source_version": "",
            "lifecycle_stage": "active",
            "artifact_uri": f"mlflow-artifacts:/{entry.experiment}/{run_id}/artifacts",
            "experiment_id": int(experiment),
        }
    )
    told = {"mlflow.runName": entry.name, **tags}
    rows["tags"] += [{"key": key, "value": value, "run_uuid": run_id} for key, value in told.items()]
    rows["params"] += [{"key": key, "value": value, "run_uuid": run_id} for key, value in entry.params.items()]
    latest: dict[str, dict[str, Any]] = {}
    for key, value, timestamp, step in entry.metrics:
        row = {"key": key, "value": value, "timestamp": timestamp, "step": step, "is_nan": False, "run_uuid": run_id}
        rows["metrics"].append(row)
        if key not in latest or (step, timestamp) >= (latest[key]["step"], latest[key]["timestamp"]):
            latest[key] = row
    rows["latest"] += latest.values()


def _add_dataset(
    rows: Rows, known: dict[tuple[int, str, str], str], dataset: tuple[str, str], experiment: int, run_id: str
) -> None:
    name, digest = dataset
    number = known.get((experiment, name, digest))
    if number is None:
        number = known[experiment, name, digest] = uuid.uuid4().hex
        source = {"dataset_source_type": "dvc", "dataset_source": json.dumps({"stage": name})}
        identity = {"dataset_uuid": number, "experiment_id": experiment, "name": name, "digest": digest}
        rows["datasets"].append(identity | source)
    link = uuid.uuid4().hex
    ends = {"source_type": "DATASET", "source_id": number, "destination_type": "RUN", "destination_id": run_id}
    rows["inputs"].append({"input_uuid": link} | ends)
    rows["input_tags"].append({"input_uuid": link, "name": "mlflow.data.context", "value": "training"})
