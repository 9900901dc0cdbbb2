from __future__ import annotations

import json
import os

import pytest

from probmetric.io import FileError
from probmetric.reporting.orchestration import measure


def write_benchmark(folder, rule, job, seconds, old=False):
    path = folder / rule / f"{job}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"s\th:m:s\tmax_rss\tmean_load\n{seconds}\t0:00:01\t12.3\t0.00\n")
    if old:
        os.utime(path, (1000, 1000))
    return path


def test_the_wall_time_is_accounted_for(workspace, tmp_path):
    folder = tmp_path / "jobs"
    runs = workspace.folders[:2]
    for name in ("digits/contrastive/seed0", "digits/contrastive/seed1"):
        write_benchmark(folder, "train", name, 8.0)
        write_benchmark(folder, "evaluate", name, 2.0)
    write_benchmark(folder, "tables", "demo", 1.0)
    write_benchmark(folder, "train", "digits/old/seed0", 500.0, old=True)
    write_benchmark(folder, "bundle", "of-these-steps", 20.0)
    found = measure(folder, runs, 14.0, cores=2, since=2000.0, output=tmp_path / "orchestration.json")
    assert found.training == pytest.approx(2 * 4 * 1.5)
    assert found.step_overhead == pytest.approx(16 - 12)
    assert found.reporting == pytest.approx(1)
    assert found.computation == pytest.approx(12 + 4)
    assert found.idle == pytest.approx(28 - 21)
    assert found.share == pytest.approx((4 + 1 + 7) / 28)
    assert found.jobs == 5
    assert "Orchestration: 43 % of 14 s on 2 core(s), 5 jobs" in found.text()
    assert json.loads((tmp_path / "orchestration.json").read_text())["by_rule"]["evaluate"] == {"jobs": 2, "seconds": 4}


def test_the_start_of_processes_counts_as_overhead(workspace, tmp_path):
    for name in ("a", "b"):
        write_benchmark(tmp_path, "evaluate", name, 2.0)
        write_benchmark(tmp_path, "embed", name, 0.5)
    found = measure(tmp_path, [], 5.0, starts={"evaluate": 0.5, "embed": 3.0, "prepare": 1.0})
    assert found.step_overhead == pytest.approx(2 * 0.5 + 2 * 0.5)
    assert found.computation == pytest.approx(5 - 2)


def test_no_start_is_counted_twice(workspace, tmp_path):
    """A training's start is what its epochs leave, a report's is reporting."""
    write_benchmark(tmp_path, "train", "a", 3.0)
    write_benchmark(tmp_path, "figures", "a", 4.0)
    found = measure(tmp_path, [], 10.0, starts={"train": 2.0, "figures": 2.0})
    assert (found.step_overhead, found.reporting, found.computation, found.idle) == pytest.approx((3, 4, 0, 3))
    assert found.share == pytest.approx(1)


def test_bad_input_is_named(workspace, tmp_path):
    with pytest.raises(ValueError, match="total_seconds is 0"):
        measure(tmp_path, [], 0)
    path = write_benchmark(tmp_path / "jobs", "train", "a", 1)
    path.write_text("nothing\n")
    with pytest.raises(FileError, match=r"train/a\.tsv is not a benchmark file"):
        measure(tmp_path / "jobs", [], 1.0)
