"""Concurrent jobs on one machine get distinct devices, and a dead job's claim is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from probmetric.training import device as devices
from probmetric.training.device import claim_device, visible_devices

CLAIM = """
import sys, tempfile, time
import torch
from probmetric.training import device as devices
tempfile.tempdir = sys.argv[1]
devices.visible_devices = lambda: ["0", "1"]
torch.cuda.set_device = lambda device: None
with devices.claim_device() as device:
    print(device, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that gives this machine CUDA devices by their identities; nothing is computed on them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    return lambda *names: monkeypatch.setattr(devices, "visible_devices", lambda: list(names))


def test_one_after_the_other_takes_the_first(machine: Callable[..., None]) -> None:
    machine("0", "1")
    for _ in range(2):
        with claim_device() as device:
            assert device == torch.device("cuda:0")


def test_concurrent_claims_are_distinct_then_shared_evenly(machine: Callable[..., None]) -> None:
    machine("GPU-a", "GPU-b", "GPU-c")
    with contextlib.ExitStack() as stack:
        claims = [stack.enter_context(claim_device()).index for _ in range(7)]
    assert sorted(claims[:3]) == sorted(claims[3:6]) == [0, 1, 2]


@pytest.mark.slow
def test_claim_of_a_killed_process_is_free_again(machine: Callable[..., None], tmp_path: Path) -> None:
    machine("0", "1")
    command = [sys.executable, "-c", CLAIM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "cuda:0"
        with claim_device() as device:
            assert device == torch.device("cuda:1")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with claim_device() as device:
        assert device == torch.device("cuda:0")


def test_what_the_scheduler_assigned_is_taken_as_it_is(machine: Callable[..., None]) -> None:
    """A single visible device is not claimed: two jobs of one device each are the scheduler's decision."""
    machine("GPU-a")
    with claim_device() as first, claim_device() as second:
        assert first == second == torch.device("cuda:0")
    machine("0", "1")
    with claim_device("cuda:1") as device:
        assert device == torch.device("cuda:1")


def test_identities_follow_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-b")
    assert visible_devices() == ["3", "GPU-b"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_devices() == ["0", "1"]


def test_cpu_and_unknown_devices(machine: Callable[..., None]) -> None:
    machine()
    with claim_device() as device:
        assert device.type == "cpu"
    machine("0")
    with claim_device("cpu") as device:
        assert device.type == "cpu"
    with (
        pytest.raises(ValueError, match=r"'cuda:5'.*allowed: auto, cpu, cuda, cuda:0"),
        claim_device("cuda:5"),
    ):
        pass
