"""Several processes at once, and processes that die in company: workers, MLflow servers, lock holders."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from deadly import Deadly
from fault_helpers import ENCODER, STEPS, Tiny
from test_kills import check_whole, tracked

from probmetric.data import DataError
from probmetric.data.image_file import write_images
from probmetric.io import FileError, read_yaml, write_yaml
from probmetric.tracking import live_curves, track

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "probmetric.cli"]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("step", ["train", "prepare"])
def test_the_same_step_twice_at_once(step, tiny, whole):
    """One does it; the other, if it comes while the first works, is told so. The result is the undisturbed one."""
    tiny.remove_outputs(step)
    both = [start(tiny.folder, *STEPS[step][0]) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 2]), outputs
    if codes == [0, 2]:
        assert any("another process" in output for output in outputs), outputs
    check_whole(tiny, whole)


def test_a_decoding_process_is_killed(tmp_path):
    """The call ends with an error that says so; the next one writes the undisturbed bytes."""
    names = np.array([f"{row}.png" for row in range(256)], dtype=object)

    def build(folder: str, reader: Deadly, workers: int) -> bytes:
        (tmp_path / folder).mkdir()
        write_images(tmp_path / folder / "images.bin", reader, names, workers=workers)
        return (tmp_path / folder / "images.bin").read_bytes()

    (tmp_path / "spared").touch()
    expected = build("whole", Deadly(tmp_path / "spared"), 1)
    deadly = Deadly(tmp_path / "killed")
    with pytest.raises(DataError, match=r"was killed .* run the same command again"):
        build("part", deadly, 2)
    assert (tmp_path / "killed").exists()
    assert build("again", deadly, 2) == expected


def test_a_store_another_process_locks_for_a_while(tiny, whole):
    (tiny.folder / "mlflow.db").unlink()
    shutil.copy(whole.folder / "mlflow.db", tiny.folder / "mlflow.db")
    with closing(sqlite3.connect(tiny.folder / "mlflow.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        release = threading.Timer(2, lambda: other.execute("ROLLBACK"))
        release.start()
        outcome = tiny.run("track")
        release.join()
    assert outcome.status == 0, outcome.output[-2000:]
    assert tracked(tiny.folder) == tracked(whole.folder)


def test_a_store_another_process_never_releases(tiny, whole):
    """The error says that the results are safe; later the same command completes the view."""
    with closing(sqlite3.connect(tiny.folder / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        outcome = tiny.run("track")
        other.execute("ROLLBACK")
    assert outcome.status == 2, outcome.output[-2000:]
    assert "locked" in outcome.output
    assert "results are safe" in outcome.output
    assert tiny.run("track").status == 0
    assert tracked(tiny.folder) == tracked(whole.folder)


def test_a_damaged_store_is_rebuilt_from_the_files(tiny, whole):
    store = tiny.folder / "mlflow.db"
    store.write_bytes(store.read_bytes()[: store.stat().st_size // 3])
    outcome = tiny.run("track")
    assert outcome.status == 2, outcome.output[-2000:]
    assert "results are safe" in outcome.output
    store.unlink()
    assert tiny.run("track").status == 0
    assert tracked(tiny.folder) == tracked(whole.folder)


class Server:
    """A real MLflow server with its own store, as a group that can be shared; killed and started again at will."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder, self.address = folder, f"http://127.0.0.1:{self.port}"
        folder.mkdir()

    def start(self) -> None:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        store = ["--backend-store-uri", "sqlite:///shared.db", "--artifacts-destination", "artifacts"]
        environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *options, *store],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"{self.address}/health", timeout=2):
                return
            time.sleep(0.2)
        pytest.fail((self.folder / "log").read_text()[-2000:])

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def test_the_tracking_server_is_killed_and_restarted_while_a_run_trains(tiny: Tiny, tmp_path, monkeypatch):
    """Training notices nothing but a lost live view; while the server is away, tracking says so; then all is there."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    server = Server(tmp_path / "server")
    server.start()
    try:
        with live_curves(server.address, ENCODER) as on_epoch:
            assert on_epoch is not None
            on_epoch({"epoch": 0, "train_loss": 1.0})
            time.sleep(1)
            server.kill()
            began = time.perf_counter()
            on_epoch({"epoch": 1, "train_loss": 0.5})
            assert time.perf_counter() - began < 0.5
        folders = [tiny.folder / "results/digits/tiny_laplace/seed0"]
        report, artifacts = tiny.folder / "reports/tiny", tmp_path / "unused"
        with pytest.raises(FileError, match="The results are safe in their files"):
            track("tiny", folders, report, store_uri=server.address, artifact_root=artifacts)
        server.start()
        receipt = track("tiny", folders, report, store_uri=server.address, artifact_root=artifacts)
        assert len(receipt["written"]) == 2, receipt
        assert track("tiny", folders, report, store_uri=server.address, artifact_root=artifacts)["written"] == []
    finally:
        server.kill()
    (tmp_path / "server/shared.db").rename(tmp_path / "mlflow.db")
    assert tracked(tmp_path) == tracked(tiny.folder)


def test_two_workspaces_share_nothing(tiny, tmp_path):
    """A second checkout with other settings at the same time does not reach into the first."""
    other = tiny.copy(tmp_path / "other")
    params = read_yaml(other.folder / "params.yaml")
    params["methods"]["tiny"]["training"]["epochs"] = 1
    write_yaml(other.folder / "params.yaml", params)
    before = tiny.files()
    assert other.run("train").status == 0
    assert tiny.files() == before
