"""Bit flips and half-written files in what the steps read: the undisturbed result, or an error that names the file."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from fault_helpers import ENCODER, PREPARED, RUN, STEPS, TIMED, Tiny
from test_kills import comparable

from probmetric.io import FileError, read_tensors, write_tensors
from probmetric.training.checkpoint import Checkpoints

pytestmark = pytest.mark.slow

# (file, step that reads it)
READ = {
    f"results/{ENCODER}/model.safetensors": "fit",
    f"results/{ENCODER}/model_last.safetensors": "embed",
    f"results/{ENCODER}/encoder.yaml": "fit",
    f"results/{RUN}/posterior.safetensors": "embed",
    f"results/{RUN}/embeddings/test.safetensors": "evaluate",
    f"results/{RUN}/embeddings/val.safetensors": "evaluate",
    f"results/{RUN}/metrics.json": "report",
    f"results/{RUN}/embeddings/timing.json": "report",
    f"results/{RUN}/curves.json": "report",
    f"results/{RUN}/run.yaml": "report",
    "reports/tiny/runs.parquet": "figures",
    f"{PREPARED}/manifest.parquet": "train",
    f"{PREPARED}/images.bin": "train",
    f"{PREPARED}/digest": "train",
}


def flip(path: Path, generator: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def check_refused_or_same(tiny: Tiny, whole: Tiny, step: str, name: str) -> bool:
    """Whether the step refused `name`; if it did not, it must have written what it writes undisturbed."""
    tiny.remove_outputs(step)
    outcome = tiny.run(step)
    if outcome.status:
        assert outcome.status == 2, outcome.output[-2000:]
        assert "Traceback" not in outcome.output
        assert Path(name).name in outcome.output
        return True
    expected = comparable(whole.files())
    for written, content in comparable(tiny.files()).items():
        if any(written == output or written.startswith(f"{output}/") for output in STEPS[step][1]):
            assert content == expected[written], f"{written} was computed from a damaged {name}"
    return False


@pytest.mark.parametrize("name", READ)
def test_flipped_bits_are_noticed(name, whole, tmp_path):
    generator = random.Random(f"flip {name}")
    for number in range(3):
        tiny = whole.copy(tmp_path / str(number))
        flip(tiny.folder / name, generator)
        check_refused_or_same(tiny, whole, READ[name], name)


@pytest.mark.parametrize("name", READ)
def test_half_a_file_is_refused(name, whole, tmp_path):
    tiny = whole.copy(tmp_path / "tiny")
    path = tiny.folder / name
    content = path.read_bytes()
    path.write_bytes(content[: random.Random(f"cut {name}").randrange(len(content) // 10, 9 * len(content) // 10)])
    refused = check_refused_or_same(tiny, whole, READ[name], name)
    assert refused or Path(name).name in TIMED or READ[name] == "report"


def test_every_flipped_bit_of_a_tensor_file_is_refused_or_harmless(tmp_path):
    """All of the header and a sample of the data of a small file, both readers."""
    path = tmp_path / "x.safetensors"
    values = {"mean": np.arange(12, dtype=np.float32).reshape(4, 3), "label": np.arange(4)}
    write_tensors(path, values, {"split": "test", "sources": "[]"})
    sound, generator = path.read_bytes(), random.Random("tensors")
    places = sorted({*range(8 * 8, 8 * len(sound), 5), *(generator.randrange(8 * len(sound)) for _ in range(200))})
    refused = 0
    for place in places:
        content = bytearray(sound)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            tensors, metadata = read_tensors(path)
        except FileError:
            refused += 1
        else:
            assert all(np.array_equal(tensors[name], value) for name, value in values.items())
            assert metadata.items() >= {"split": "test", "sources": "[]"}.items()
    assert refused > 0.9 * len(places)


def test_every_flipped_bit_of_a_checkpoint_means_the_previous_one(tmp_path):
    generator = random.Random("checkpoint")
    for number in range(25):
        store = Checkpoints(tmp_path / str(number))
        for step in (1, 2):
            store.save(step, {"identity": "a", "weights": torch.full((64,), float(step))})
        flip(store.files()[-1], generator)
        state = store.load("a")
        assert state is not None
        assert torch.equal(state["weights"], torch.ones(64))
