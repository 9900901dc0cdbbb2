"""Live curves must never fail or slow a training, whatever the server does. (A real server: test_tracking_ui.py.)"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time

import pytest

from probmetric.tracking import live_curves

RUN = "digits/proxy_nca_pp/seed0"


def row(epoch: int) -> dict[str, object]:
    return {"epoch": epoch, "train_loss": 1.0, "val_metric": None, "grad_norm": float("nan")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def send(address: str, rows: int) -> tuple[float, float]:
    """(seconds in on_epoch, seconds to leave)."""
    with live_curves(address, RUN) as on_epoch:
        started = time.perf_counter()
        for epoch in range(rows):
            on_epoch(row(epoch))
        sent = time.perf_counter()
    return sent - started, time.perf_counter() - sent


def warnings_about(address: str, caplog: pytest.LogCaptureFixture) -> int:
    """Threads of earlier tests may still be giving up on their own servers."""
    return sum(record.getMessage().startswith(f"no live curves on {address}:") for record in caplog.records)


@pytest.mark.parametrize("store", ["sqlite:///mlflow.db", "file:./mlruns", ""])
def test_without_a_server_nothing_is_shown(store):
    with live_curves(store, RUN) as on_epoch:
        assert on_epoch is None


def test_a_lost_server_is_reported_once_and_costs_nothing(caplog):
    address = f"http://127.0.0.1:{free_port()}"
    with caplog.at_level(logging.WARNING):
        sending, leaving = send(address, 5000)
    assert sending < 1
    assert leaving < 4
    assert warnings_about(address, caplog) == 1


@pytest.mark.slow
def test_a_server_that_never_answers_holds_nobody_up():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        sending, leaving = send(f"http://127.0.0.1:{silent.getsockname()[1]}", 5000)
    threads_give_up()
    assert sending < 1
    assert leaving < 4


def threads_give_up() -> None:
    """Wait for them here: later they would warn into the log of another test."""
    for thread in threading.enumerate():
        if thread.name == "live-curves":
            thread.join(10)


def test_a_server_that_talks_nonsense_is_dropped(caplog):
    with socket.socket() as server, caplog.at_level(logging.WARNING):
        server.bind(("127.0.0.1", 0))
        server.listen()
        threading.Thread(target=_nonsense, args=(server,), daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        send(address, 3)
    assert warnings_about(address, caplog) == 1


def _nonsense(server: socket.socket) -> None:
    connection, _ = server.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\noops")
    connection.close()


def test_an_error_of_the_training_goes_through():
    with pytest.raises(KeyError, match="mine"), live_curves(f"http://127.0.0.1:{free_port()}", RUN):
        raise KeyError("mine")


def test_training_imports_no_mlflow_for_it():
    script = "import sys, probmetric.tracking; sys.exit(any(m in sys.modules for m in ('mlflow', 'pandas', 'torch')))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
