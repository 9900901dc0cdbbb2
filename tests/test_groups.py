"""Tests of one group stay with one worker: those that share a SLURM daemon would disturb each other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PAIR = """
import pathlib, time, pytest

@pytest.mark.xdist_group("pair")
@pytest.mark.parametrize("number", range(2))
def test_one(number, worker_id):
    pathlib.Path(f"{number}.{worker_id}").touch()
    time.sleep(0.2)
"""


@pytest.mark.processes
def test_pytest_and_its_plugin_keep_groups_together(tmp_path):
    """Of two workers one runs both tests; with some pairs of releases the groups are forgotten without a word."""
    (tmp_path / "test_pair.py").write_text(PAIR)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--dist", "loadgroup"]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others are ten seconds of importing
    subprocess.run(command, cwd=tmp_path, env=alone, check=True, capture_output=True)
    workers = [path.suffix for path in tmp_path.glob("*.gw*")]
    assert len(workers) == 2
    assert len(set(workers)) == 1
