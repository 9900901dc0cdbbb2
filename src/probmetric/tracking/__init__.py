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

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probmetric.io import FileError
from probmetric.runs.folder import RunFolder, finished_runs
from probmetric.tracking import _store
from probmetric.tracking._entries import pending_report, pending_run
from probmetric.tracking.live import live_curves

__all__ = ["live_curves", "track", "ui_addresses", "ui_command"]


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
        runs: its runs, or their folders; those that are not finished are left out.
        report_folder: `reports/<experiment>`; its tables and figures become artifacts.
        store_uri: `sqlite:///mlflow.db`, or the address of a tracking server.
        artifact_root: folder of the artifacts (not used with a tracking server, which has its own).

    Returns:
        What was done: names of the runs written, number of runs found unchanged.

    Raises:
        FileError: the store cannot be written, or another process holds it for too long.
    """
    entries = [pending_run(run) for run in finished_runs(runs)]
    report = pending_report(experiment, Path(report_folder))
    entries += [report] if report else []
    address = _store.absolute(store_uri)
    with _store.opened(address, Path(artifact_root)):
        from probmetric.tracking._writer import Writer

        return Writer(address, Path(artifact_root), experiment).write(entries)


def ui_command(store_uri: str, port: int, artifact_root: str | Path = "mlartifacts") -> list[str]:
    """Command that serves the MLflow UI for a local store, to this machine only.

    Raises:
        FileError: `store_uri` is a tracking server, which has a UI of its own.
    """
    if not _store.is_local(store_uri):
        raise FileError(f"{store_uri} is a tracking server; open that address in a browser.")
    settings = ["MLFLOW_DISABLE_TELEMETRY=true", "DO_NOT_TRACK=true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"]
    server = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    server += ["--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"]  # refuses pages that reach it by other names
    store = ["--backend-store-uri", store_uri, "--artifacts-destination", str(artifact_root)]
    return ["env", *settings, *server, *store]


def ui_addresses(store_uri: str, port: int) -> list[str]:
    """Lines that say where the UI shows what: all experiments, and each dataset's runs, best first."""
    root = f"http://127.0.0.1:{port}/"
    lines = [f"MLflow UI: {root}#/experiments?workflowType=machine_learning (Ctrl-C stops it)"]
    if not _store.is_database(store_uri):
        return lines
    with _store.quiet_mlflow():
        from mlflow import MlflowClient

        from probmetric.tracking._view import views

        found = views(MlflowClient(tracking_uri=store_uri))
    return lines + [f"  runs on {name}: {root}{address}" for name, address in sorted(found.items())]
