"""What a certificate reads of a run: groups of its test images, and the map to P(right)."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from probmetric.data.manifest import DataError
from probmetric.io import FileError
from probmetric.runs import steps
from probmetric.runs.folder import RunFolder


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


@pytest.mark.parametrize(("kept", "said"), [("{", "Expecting property name"), ('{"weight": 1}', "unexpected keyword")])
def test_a_damaged_map_names_the_file_and_the_fix(tmp_path, monkeypatch, kept, said):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.named("digits/arcface/seed0")
    folder.write_matches({"test": {"asked": np.ones(2, dtype=bool)}}, {"p_right": kept})
    numbers = torch.arange(2)
    tensors = {"mean": torch.eye(2), "uncertainty": torch.ones(2), "label": numbers, "index": numbers}
    folder.write_embeddings("test", tensors, {})
    with pytest.raises(FileError, match=rf"matches\.safetensors is damaged \(.*{said}.*\); delete the run folder"):
        steps.certify("digits/arcface/seed0", risk=0.1, confidence=0.9)
