"""`dvc repro` leaves dvc.lock of an unchanged clone as it is committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from probmetric.data.manifest import FORMAT
from probmetric.io import read_yaml

ROOT = Path(__file__).parents[2]
STAGES = read_yaml(ROOT / "dvc.lock")["stages"]


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage.startswith(("prepare@", "noise@"))])
def test_the_lock_knows_the_format_of_prepared_data(stage):
    """After a change of FORMAT, `dvc repro prepare@<dataset>` and commit dvc.lock."""
    assert STAGES[stage]["params"]["src/probmetric/data/manifest.py"] == {"FORMAT": FORMAT}


def test_every_embedded_dataset_is_locked():
    wanted = {f"prepare@{name}" for name in read_yaml(ROOT / "params.yaml")["datasets"]}
    assert wanted <= STAGES.keys()
