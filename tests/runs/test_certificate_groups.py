"""Groups of a run's test images, from a column of its prepared dataset."""

from types import SimpleNamespace

import pandas as pd
import pytest

from probmetric.data.manifest import DataError
from probmetric.runs import steps


def test_groups_are_those_of_the_test_images(tmp_path, monkeypatch):
    listed = pd.DataFrame({"split": ["train", "test", "val", "test"], "person": ["a", "b", "c", "d"]})
    opened = []
    monkeypatch.setattr(steps, "load_manifest", lambda data: opened.append(data) or listed)
    folder = SimpleNamespace(
        path=tmp_path / "results/digits/arcface/seed0",
        key=SimpleNamespace(data="digits"),
        find=lambda name, default: default,
    )
    assert steps._test_groups(folder, "person", 2).tolist() == ["b", "d"]
    assert opened == [tmp_path / "data/prepared/digits"]
    with pytest.raises(DataError, match="no column 'walk'; it has split, person"):
        steps._test_groups(folder, "walk", 2)
    with pytest.raises(DataError, match="has 2 test images, the run embedded 3"):
        steps._test_groups(folder, "person", 3)
