from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from sqlalchemy import Engine, event

sys.path.append(str(Path(__file__).parents[1] / "reporting"))

import fabricated_runs
from fabricated_runs import RUNS, Workspace, gathered, study_metrics, write_prepared, write_run

from built_once import BuiltOnce, package_files
from probmetric.reporting.figures import draw
from probmetric.reporting.report import contents_of, write_page, write_tables
from probmetric.runs.names import RunKey

TRACKED = tuple(run for run in RUNS if "arcface" not in run and "raw_pixels" not in run and "seed2" not in run)


@event.listens_for(Engine, "connect")
def _write_without_waiting_for_the_disk(connection: sqlite3.Connection, _record: object) -> None:
    """No test here pulls the plug; waiting for the disk at every commit took half of their time."""
    connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(scope="session")
def empty_store(built_once: BuiltOnce) -> Path:
    """An MLflow store without runs, which depends on MLflow alone. It takes seconds: one for each of its migrations."""

    def make(folder: Path) -> None:
        address = f"sqlite:///{folder / 'mlflow.db'}"
        MlflowClient(tracking_uri=address, registry_uri=address).search_experiments()

    return built_once.folder("mlflow-store", make, ()) / "mlflow.db"


@pytest.fixture(scope="session")
def built_results(built_once: BuiltOnce) -> Path:
    """Run folders and one drawn report, made once."""
    sources = [*package_files(), Path(__file__), Path(fabricated_runs.__file__)]
    return built_once.folder("tracked", write_results, sources)


def write_results(root: Path) -> None:
    for run in TRACKED:
        key = RunKey.parse(f"results/{run}")
        write_run(root, run, study_metrics(key.dataset, key.noise, key.method, key.seed))
    write_prepared(root, "digits")
    space = Workspace(root, TRACKED)
    context = space.context("study", figures=("sparsification", "noise_robustness"))
    context = gathered(context)
    write_tables(contents_of(context))
    for name in context.figures:
        draw(name, context)
    write_page(contents_of(context))


@pytest.fixture
def tracked(built_results: Path, empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A repository of this test's own, with empty stores, and the current folder."""
    root = tmp_path / "repository"
    shutil.copytree(built_results, root)
    for name in ("mlflow.db", "rebuilt.db"):
        shutil.copy(empty_store, root / name)
    monkeypatch.chdir(root)
    return Workspace(root, TRACKED)


@contextlib.contextmanager
def running_ui(command: list[str], port: int, folder: Path) -> Iterator[str]:
    """The real MLflow server, started by the real command; stopped with all its workers."""
    log = folder / "ui.log"
    with log.open("wb") as file:
        server = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/health", server, log)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def wait_for(address: str, server: subprocess.Popen[bytes], log: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.25)
    pytest.fail(f"the MLflow server did not come up:\n{log.read_text(errors='replace')[-2000:]}")


@pytest.fixture
def serve(tracked: Workspace) -> Callable[..., contextlib.AbstractContextManager[str]]:
    """Start the MLflow UI of a repository: `with serve(folder) as address`."""
    from probmetric.tracking import ui_command

    def start(folder: Path) -> contextlib.AbstractContextManager[str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return running_ui(ui_command("sqlite:///mlflow.db", port), port, folder)

    return start
