"""The benchmark runs from the command line and writes what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "losses.py"


@pytest.mark.slow
@pytest.mark.processes
def test_benchmark_names_the_hardware_and_relates_every_row_to_its_peers(tmp_path: Path) -> None:
    output = tmp_path / "losses.json"
    sizes = ["--classes", "6", "--batch", "8", "--dim", "4", "--rounds", "2", "--step-batch", "0", "--device", "cpu"]
    command = [sys.executable, str(SCRIPT), *sizes, "--cpu-time", "--only", "cosine", "--output", str(output)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    written = json.loads(output.read_text())
    assert written["hardware"]["cpu"]
    assert written["hardware"]["threads"] == 1
    assert written["clock"] == "processor time, one thread"
    rows = {row["loss"]: row for row in written["results"]}
    assert list(rows) == ["three matrix products", "PML ProxyAnchor", "PML NormalizedSoftmax", "cosine"]
    assert rows["PML ProxyAnchor"]["ratio_to_pml_proxy_anchor"] == 1.0
    assert rows["cosine"]["ratio_to_peer"] > 0
    assert "C = 6" in run.stdout
