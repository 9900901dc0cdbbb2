"""Write results to MLflow. The MLflow store is only a view of the result files; it can be rebuilt from them.

There is one MLflow experiment per dataset and one MLflow run per run folder. The tag `probmetric.run` finds a run
again, the tag `probmetric.digest` tells whether it has changed. One more experiment, `reports`, holds the tables and
figures. A second call writes no run, a changed run replaces the old one, and an empty store gets the same content.

Writers of one store wait for each other at a lock file beside the store, so several processes may call `track` at once,
even before the store exists. Artifacts of a local store are copied below `artifact_root`, where MLflow's client reads
them without a server. If you move that folder, `track` writes them again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from probmetric.errors import without_secrets
from probmetric.io import FileError
from probmetric.runs.folder import RunFolder, finished_runs
from probmetric.runs.names import legal_name
from probmetric.tracking import store
from probmetric.tracking.entries import report_source, run_source

__all__ = ["live_curves", "track", "ui_addresses", "ui_command"]

_SECONDS_TO_FINISH, _MOST_ROWS_WAITING = 3.0, 1000
_log = logging.getLogger(__name__)


def track(
    experiment: str,
    runs: Iterable[str | Path | RunFolder],
    report_folder: str | Path,
    *,
    store_uri: str,
    artifact_root: str | Path,
) -> dict[str, Any]:
    """Bring the MLflow store up to date with finished runs and the experiment's report.

    Args:
        experiment: name of the experiment the runs belong to.
        runs: its runs, or their folders; unfinished runs are left out.
        report_folder: `reports/<experiment>`; its tables and figures become artifacts.
        store_uri: `sqlite:///mlflow.db`, or the address of a tracking server.
        artifact_root: folder of the artifacts (not used with a tracking server, which has its own).

    Returns:
        What was done: names of the runs written, number of runs found unchanged.

    Raises:
        FileError: the store cannot be written.
    """
    sources = [run_source(run) for run in finished_runs(runs)]
    report = report_source(experiment, Path(report_folder))
    sources += [report] if report else []
    root = Path(artifact_root)
    with store.opened(store_uri, root) as client:
        local_root = root if store.is_local(store_uri) else None
        return store.Writer(client, local_root, legal_name(experiment)).write(sources)


def ui_command(store_uri: str, port: int, artifact_root: str | Path = "mlartifacts") -> list[str]:
    """Return the command that serves the MLflow UI for a local store, to this machine only.

    Raises:
        FileError: `store_uri` is a tracking server, which has its own UI, or is no store; or the port is in use.
    """
    if not store.is_local(store_uri):
        raise FileError(f"{store_uri} is a tracking server; open that address in a browser.")
    store.check_place(store_uri, artifact_root)
    with socket.socket() as asking:
        if asking.connect_ex(("127.0.0.1", port)) == 0:
            raise FileError(
                f"something answers at port {port} already; stop it, or name another one: --port {port + 1}."
            )
    settings = ["MLFLOW_DISABLE_TELEMETRY=true", "DO_NOT_TRACK=true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"]
    server = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    server += ["--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"]  # refuses requests under other host names
    places = ["--backend-store-uri", store_uri, "--artifacts-destination", str(artifact_root)]
    return ["env", *settings, *server, *places]


def ui_addresses(store_uri: str, port: int) -> list[str]:
    """Return lines with the UI's addresses: of all experiments, and of each dataset's runs, best first.

    Raises:
        FileError: the store cannot be read, for example because another version of MLflow wrote it.
    """
    root = f"http://127.0.0.1:{port}/"
    lines = [f"MLflow UI: {root}#/experiments?workflowType=machine_learning (Ctrl-C stops it)"]
    database = Path(store_uri.removeprefix("sqlite:///")).resolve()
    if not store_uri.startswith("sqlite:///"):
        return lines
    if not database.is_file():
        return [*lines, "  no runs yet: `probmetric track <experiment>` writes them, and so does `snakemake`."]
    with store.quiet_mlflow(), store.readable_errors(store_uri):
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{database}")  # absolute: MLflow caches open stores by address
        experiments = sorted(client.search_experiments(), key=lambda each: each.name)
    shown = [each for each in experiments if store.VIEW_TAG + store.VIEW in each.tags]
    lines += [f"  runs on {each.name}: {root}{store.view_address(each.experiment_id)}" for each in shown]
    folders = [Path(each.artifact_location.removeprefix("file://")) for each in shown]
    if moved := [folder for folder in folders if not folder.is_dir()]:
        lines.append(f"  no artifacts in {moved[0].parent}: was it moved? `probmetric track <experiment>` writes them.")
    return lines


@contextlib.contextmanager
def live_curves(store_uri: str, run: str) -> Iterator[Callable[[Mapping[str, Any]], None] | None]:
    """Show the curves of a run on a tracking server while it trains.

        with live_curves(uri, run) as on_epoch:
            train_run(..., on_epoch=on_epoch)

    A thread with an MLflow client sends the rows of the history; training never waits. If the server is slow, lost or
    wrong, only the live view is lost: the first failure is logged, and the following rows are dropped. When the run is
    finished, `track` writes the real run from its files and removes the live one.

    Args:
        store_uri: address of a tracking server; with any other store nothing is shown and None is yielded.
        run: the run's name, `<dataset>[+noise<rate>]/<method>[+key=value]/seed<k>`.
    """
    if not store_uri.startswith(("http://", "https://")):
        yield None
        return
    rows: queue.Queue[Mapping[str, Any] | str] = queue.Queue(_MOST_ROWS_WAITING)
    thread = threading.Thread(target=_send, args=(store_uri, run, rows), name="live-curves", daemon=True)
    status = "FAILED"

    def put(row: Mapping[str, Any]) -> None:
        with contextlib.suppress(queue.Full):
            rows.put_nowait(dict(row))

    with store.patience(5, 0):
        thread.start()
        try:
            yield put
            status = "FINISHED"
        finally:
            if rows.full():
                with contextlib.suppress(queue.Empty):
                    rows.get_nowait()
            with contextlib.suppress(queue.Full):
                rows.put_nowait(status)
            thread.join(_SECONDS_TO_FINISH)


def _send(store_uri: str, run: str, rows: queue.Queue[Mapping[str, Any] | str]) -> None:
    """Create the live run and send the rows of its history until its status comes."""
    try:
        with store.quiet_mlflow():
            from mlflow import MlflowClient
            from mlflow.entities import Metric

            client = MlflowClient(tracking_uri=store_uri)
            dataset = run.partition("/")[0].partition("+")[0]
            experiment_id = store.Writer(client, None, "").experiment_id(dataset)
            live = client.create_run(experiment_id, tags={store.LIVE_TAG: run}, run_name=f"{run} (live)")
            while not isinstance(row := rows.get(), str):
                now, epoch = int(time.time() * 1000), int(row.get("epoch") or 0)
                values = {name: value for name, value in row.items() if isinstance(value, int | float)}
                finite = {name: value for name, value in values.items() if name != "epoch" and math.isfinite(value)}
                metrics = [Metric(f"by_epoch/{name}", value, now, epoch) for name, value in finite.items()]
                client.log_batch(live.info.run_id, metrics)
            client.set_terminated(live.info.run_id, row)
    except Exception as error:  # whatever a server or a proxy answers, training goes on
        _log.warning(without_secrets(f"no live curves on {store_uri}: {error}; training goes on."))
