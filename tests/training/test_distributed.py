"""One run on two processes is the run on one: loss, gradients, weights; and what happens when a process dies."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import rank_worker
import torch

from probmetric.io import read_tensors

PROCESSES = 2
WORKER = Path(rank_worker.__file__)


@pytest.fixture(scope="module")
def together(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes computed, every loss in turn."""
    folder = tmp_path_factory.mktemp("together")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(WORKER), str(digits), str(folder)]
    running = [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(PROCESSES)
    ]
    messages = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0] * PROCESSES, messages
    return folder


def result(folder: Path, name: str, rank: int) -> dict[str, torch.Tensor]:
    return read_tensors(folder / f"{name}.{rank}.safetensors", framework="torch")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", rank_worker.LOSSES)
def test_two_processes_compute_the_run_of_one(together: Path, digits: Path, tmp_path: Path, name: str) -> None:
    """Batches of 21 are shared as 11 and 10; the vMF run freezes the first layer for an epoch."""
    expected = rank_worker.facts(rank_worker.train(name, digits, tmp_path, warmup_epochs=int(name == "vmf")))
    found, other = (result(together, name, rank) for rank in range(PROCESSES))
    assert found.keys() == expected.keys()
    steepest = max(float(value.abs().max()) for key, value in expected.items() if key.startswith("gradient/"))
    for key, value in expected.items():
        scale = steepest if key.startswith("gradient/") else max(1.0, float(value.abs().max()))
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-5 * scale, msg=lambda m, k=key: f"{k}: {m}")
    for key in (key for key in found if key.startswith("weight/")):
        assert torch.equal(found[key], other[key]), f"{key} differs between the processes"
