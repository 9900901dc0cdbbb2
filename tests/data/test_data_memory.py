"""Preparation of the largest dataset, 1.6 million street scenes, would fit into 1 GB: measured per image on a few."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "streets.py"
FEW, SOME, MANY, PUBLISHED = 4_000, 20_000, 60_000, 1_600_000
MEASURE = """
import sys
from pathlib import Path
import numpy as np
from probmetric.data import load_manifest, manifest, prepare_dataset

def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1000

def grown(work):
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before

def prepare(name):
    prepare_dataset("msls", name, raw=name + "-raw", store="files", workers=1, progress=False)

group, manifest.GROUP = manifest.GROUP, 1024
prepare("few")
base, some, many = resident("VmRSS"), grown(lambda: prepare("some")), grown(lambda: prepare("many"))
manifest.GROUP = group
names = manifest.read_table("few")[0].column_names
rows = {name: np.resize(values, group) for name, values in manifest.load_columns("few", names).items()}
print(base, some, many, grown(lambda: manifest.write_manifest(Path("large.parquet"), rows, {})))
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux' account of memory")
def test_memory_of_preparation_stays_below_1_gb_at_the_published_size(tmp_path):
    spec = importlib.util.spec_from_file_location("streets", SCRIPT)
    streets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(streets)
    for name, count in (("few", FEW), ("some", SOME), ("many", MANY)):
        streets.write_streets(tmp_path / f"{name}-raw", count)
    command = [sys.executable, "-c", MEASURE]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    base, some, many, writing = map(float, output.split())
    per_image = (many - some) / (MANY - SOME)  # their difference: what any preparation takes is no image's
    assert base + writing + PUBLISHED * per_image < 1000, (base, writing, 1e6 * per_image)
