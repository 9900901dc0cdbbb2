"""What a certificate reads of a run: groups of its test images, and the map to P(right)."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from probmetric.data import prepare_dataset
from probmetric.data.manifest import DataError, load_manifest
from probmetric.io import FileError, write_yaml
from probmetric.runs import steps
from probmetric.runs.evaluate import ImageFacts
from probmetric.runs.folder import RunFolder
from probmetric.trust.certificates import Certificate


def evaluated(root, splits):
    """Write a run on images with these splits, two of each person, asked as the dataset says."""
    raw = root / "raw"
    raw.mkdir()
    names = [f"{number}.png" for number in range(len(splits))]
    for number, name in enumerate(names):
        Image.new("RGB", (8, 8), (number, number // 2, 7)).save(raw / name)
    persons, labels = [f"p{number // 2}" for number in range(len(splits))], np.arange(len(splits)) % 2
    pd.DataFrame({"path": names, "label": labels, "split": splits, "person": persons}).to_csv(raw / "images.csv")
    data, options = root / "data/prepared/shop", {"min_images": 1, "split": "by_image"}
    prepare_dataset("table", data, raw=raw / "images.csv", progress=False, **options)
    folder, rows = RunFolder.named("shop/arcface/seed0"), load_manifest(data)
    mean = np.eye(2)[rows["label"]] + 0.1 * np.random.default_rng(0).normal(size=(len(rows), 2))
    mean = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).astype(np.float32)
    tensors = {"mean": mean, "uncertainty": np.zeros(len(rows), np.float32)}
    tensors |= {"label": rows["label"].to_numpy(), "index": np.arange(len(rows))}
    test = {name: torch.from_numpy(values[rows["split"] == "test"]) for name, values in tensors.items()}
    folder.write_embeddings("test", test, {})
    facts, record = ImageFacts.of(data), folder.embeddings("test")
    arrays = {name: record[name] for name in ("mean", "uncertainty")}
    answers = facts.asked(record).answers(arrays, record["label"])
    folder.write_matches({"test": answers.tensors()}, {})
    write_yaml(folder.record_file, {"run": "shop/arcface/seed0", "settings": {}})


@pytest.mark.parametrize(("split", "groups"), [("test", 120), ("query", 60)])
def test_groups_are_those_of_the_images_that_ask(tmp_path, monkeypatch, split, groups):
    monkeypatch.chdir(tmp_path)
    searched = "test" if split == "test" else "gallery"
    evaluated(tmp_path, [split] * 120 + [searched] * 120 + ["train"] * 4)
    said = steps.certify("shop/arcface/seed0", risk=0.2, confidence=0.9, score="cosine", group="person")
    assert Certificate.load(said.with_suffix(".json")).groups == groups
    with pytest.raises(DataError, match=r"no column 'walk'; it has .*person"):
        steps.certify("shop/arcface/seed0", risk=0.2, confidence=0.9, group="walk")


def test_the_certificate_of_every_run_is_one_of_three_tries(tmp_path, monkeypatch):
    """The smallest of three risks is chosen after a look at all of them."""
    monkeypatch.chdir(tmp_path)
    evaluated(tmp_path, ["test"] * 240 + ["train"] * 4)
    steps.certify_smallest("shop/arcface/seed0")
    assert Certificate.load(RunFolder.named("shop/arcface/seed0").certificate_file).tries == 3


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
