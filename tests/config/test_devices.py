"""Devices found without PyTorch, and the workstation's profile."""

from pathlib import Path

import pytest

from probmetric.io import read_yaml
from probmetric.planning.devices import device_count

PROFILES = Path(__file__).parents[2] / "workflow/profiles"


@pytest.mark.parametrize(
    ("named", "count"), [("", 0), ("-1", 0), ("3", 1), ("0,1", 2), ("GPU-8f3a, GPU-11c2", 2), ("0,", 1)]
)
def test_devices_that_are_assigned_count(named, count, tmp_path):
    (tmp_path / "0000:01:00.0").mkdir()
    assert device_count({"CUDA_VISIBLE_DEVICES": named}, tmp_path) == count


def test_otherwise_those_of_the_driver_count(tmp_path):
    assert device_count({}, tmp_path / "nowhere") == 0
    for number in range(3):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    assert device_count({}, tmp_path) == 3


def test_the_workstation_asks_for_devices_where_the_cluster_does():
    workstation, slurm = (read_yaml(PROFILES / name / "profile.yaml") for name in ("workstation", "slurm"))
    asking = {rule for rule, asked in slurm["set-resources"].items() if "gpu" in asked}
    assert workstation["set-resources"] == {rule: {"gpu": 1} for rule in asking}
    default = read_yaml(PROFILES / "default/profile.yaml")
    for key in default.keys() - {"resources"}:
        assert workstation[key] == default[key], key
