"""`dvc repro` leaves dvc.lock of an unchanged clone as it is committed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from probmetric.io import read_yaml

ROOT = Path(__file__).parents[2]
STAGES = read_yaml(ROOT / "dvc.lock")["stages"]
FILES = [(stage, part) for stage, lock in STAGES.items() for part in lock["deps"] if (ROOT / part["path"]).is_file()]


@pytest.mark.parametrize(("stage", "noted"), FILES, ids=[f"{stage} {part['path']}" for stage, part in FILES])
def test_the_lock_knows_the_sources_as_they_are(stage, noted):
    """After a change of a source, `dvc repro prepare@<dataset>` and commit dvc.lock."""
    content = (ROOT / noted["path"]).read_bytes()
    assert (hashlib.md5(content).hexdigest(), len(content)) == (noted["md5"], noted["size"])


def test_every_embedded_dataset_is_locked():
    wanted = {f"prepare@{name}" for name in read_yaml(ROOT / "params.yaml")["datasets"]}
    assert wanted <= STAGES.keys()
