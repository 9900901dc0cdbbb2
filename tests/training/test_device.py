"""Concurrent jobs on one machine get distinct devices, and a dead job's claim is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from probmetric.training.device import claim_device, visible_devices

CLAIM = """
import sys, time
from probmetric.training.device import claim_device
with claim_device(devices=["0", "1"], lock_folder=sys.argv[1]) as device:
    print(device, flush=True)
    time.sleep(60)
"""


def test_one_after_the_other_takes_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        with claim_device(devices=["0", "1"], lock_folder=tmp_path) as device:
            assert device == torch.device("cuda:0")


def test_concurrent_claims_are_distinct_then_shared_evenly(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        claims = [
            stack.enter_context(claim_device(devices=["GPU-a", "GPU-b", "GPU-c"], lock_folder=tmp_path)).index
            for _ in range(7)
        ]
    assert sorted(claims[:3]) == sorted(claims[3:6]) == [0, 1, 2]


@pytest.mark.slow
def test_claim_of_a_killed_process_is_free_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "cuda:0"
        with claim_device(devices=["0", "1"], lock_folder=tmp_path) as device:
            assert device == torch.device("cuda:1")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with claim_device(devices=["0", "1"], lock_folder=tmp_path) as device:
        assert device == torch.device("cuda:0")


def test_what_the_scheduler_assigned_is_taken_as_it_is(tmp_path: Path) -> None:
    """A single visible device is not claimed: two jobs of one device each are the scheduler's decision."""
    with (
        claim_device(devices=["GPU-a"], lock_folder=tmp_path) as first,
        claim_device(devices=["GPU-a"], lock_folder=tmp_path) as second,
    ):
        assert first == second == torch.device("cuda:0")
    with claim_device("cuda:1", devices=["0", "1"], lock_folder=tmp_path) as device:
        assert device == torch.device("cuda:1")


def test_identities_follow_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-b")
    assert visible_devices() == ["3", "GPU-b"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_devices() == ["0", "1"]


def test_cpu_and_unknown_devices() -> None:
    with claim_device(devices=[]) as device:
        assert device.type == "cpu"
    with (
        pytest.raises(ValueError, match=r"'cuda:5'.*allowed: auto, cpu, cuda, cuda:0"),
        claim_device("cuda:5", devices=["0"]),
    ):
        pass
