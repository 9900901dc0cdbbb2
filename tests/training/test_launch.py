"""Which process this is, and how the others are started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probmetric import launch
from probmetric.config import ConfigError
from probmetric.launch import Place, first_node, meeting_point, place_of, start_command, take_place

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "gpu1"}
SRUN = {
    "SLURM_JOB_ID": "1000001",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "SLURM_NTASKS": "2",
}


def test_place_from_the_environment() -> None:
    assert place_of({}, 1) == Place(0, 1, 1)
    assert place_of({}, 2) is None
    assert place_of(TORCHRUN, 4) == place_of(TORCHRUN, 1) == Place(3, 4, 2)
    assert place_of(SRUN, 2) == Place(1, 2, 1)
    assert place_of(SRUN, 1) == Place(), "a step of several independent commands"
    assert place_of(SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, 2) is None, "one task that starts its own processes"


def test_threads_of_a_job_are_shared_on_one_machine() -> None:
    assert Place(1, 4, 2).threads(8) == 4
    assert Place(1, 4, 4).threads(1) == 1
    assert Place(1, 2, 1).threads(8) == 8


def test_torchrun_starts_the_processes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.shutil, "which", lambda name: "/usr/bin/srun")
    for environment in ({}, {"SLURM_NTASKS": "1"}, {"SLURM_NTASKS": "4"}):
        command = start_command(environment, 2, ["train", "run"])
        assert command[1:] == ["-m", "probmetric.launch", "2", "-m", "probmetric.cli", "train", "run"]


def test_srun_starts_them_where_as_many_tasks_are_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    granted = {"SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "8"}
    monkeypatch.setattr(launch.shutil, "which", lambda name: None)
    assert "probmetric.launch" in start_command(granted, 2, ["train", "run"])
    monkeypatch.setattr(launch.shutil, "which", lambda name: "/usr/bin/srun")
    command = start_command(granted, 2, ["train", "run"])
    assert command[:4] == ["srun", "--ntasks=2", "--cpus-per-task=8", "--kill-on-bad-exit=1"]
    assert command[-4:] == ["-m", "probmetric.cli", "train", "run"]


def test_a_step_s_processes_agree_where_to_meet() -> None:
    point = meeting_point(SRUN)
    assert point == meeting_point(SRUN | {"SLURM_PROCID": "0"})
    assert point["MASTER_ADDR"] == "gpu03"
    assert 1024 < int(point["MASTER_PORT"]) < 65536
    assert point["MASTER_PORT"] != meeting_point(SRUN | {"SLURM_STEP_ID": "3"})["MASTER_PORT"]


@pytest.mark.parametrize(
    "changed",
    [
        {"SLURM_JOB_ID": "x"},
        {"SLURM_JOB_ID": "9" * 5000},
        {"SLURM_STEP_ID": "-1"},
        {"SLURM_STEP_NODELIST": ""},
        {"SLURM_STEP_NODELIST": "["},
    ],
)
def test_a_step_that_slurm_does_not_describe_is_refused(changed: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no place among processes"):
        meeting_point(SRUN | changed)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("vm", "vm"),
        ("a1,a2", "a1"),
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("n[7]-ib", "n7-ib"),
        ("host-01.site", "host-01.site"),
    ],
)
def test_first_node(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_another_number_than_asked_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(TORCHRUN))
    assert take_place(4, []) == Place(3, 4, 2)
    with pytest.raises(ConfigError, match="--processes 2, but 4 were started"):
        take_place(2, [])
    with pytest.raises(ConfigError, match="--processes 0; give at least 1"):
        take_place(0, [])


def test_starting_replaces_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program of the same name stands for the launcher; it must receive this command's arguments."""
    calls: list[list[str]] = []

    def replaced(_program: str, command: list[str]) -> None:
        calls.append(command)
        raise SystemExit

    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(os, "execvp", replaced)
    with pytest.raises(SystemExit):
        take_place(2, ["embed", "run", "--threads", "4"])
    assert calls[0][-4:] == ["embed", "run", "--threads", "4"]


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "abc", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "0"},
        {"RANK": "0", "WORLD_SIZE": "²"},
        {"SLURM_PROCID": "", "SLURM_STEP_NUM_TASKS": "2"},
    ],
)
def test_an_environment_that_names_no_place_is_said_in_a_sentence(environment):
    with pytest.raises(ConfigError, match="no place among processes"):
        place_of(environment, 2)
