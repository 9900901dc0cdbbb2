"""A step that computes something else, or by other defaults, has another version: old results must not pass as new.

The code of components is part of a step's identity. That of the steps themselves (loop, samplers, readers) is not, nor
are the defaults of settings: both are held here, in `step_versions.json`. Where a test fails and the change is meant,
raise the step's number in `probmetric.runs.identity.VERSIONS`, then `python tests/workflow/test_step_versions.py`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probmetric.config import EncoderSettings, Evaluation, RunSettings, Training
from probmetric.io import read_tensors, write_json
from probmetric.runs import steps as pipeline
from probmetric.runs.folder import RunFolder
from probmetric.runs.identity import VERSIONS
from probmetric.runs.plan import Run, RunPlan

RECORD = Path(__file__).with_name("step_versions.json")
NAME = "digits/recorded/seed0"
SETTINGS: dict[str, Any] = {
    "loss": {"name": "contrastive"},
    "backbone": {"name": "compact", "width": 4},
    "dim": 6,
    "training": {"epochs": 2, "steps_per_epoch": 4, "batch_size": 32, "warmup_epochs": 1, "gradient_clip": 1.0},
    "uncertainty": {"name": "laplace", "samples": 4},
    "ood": ("digits",),
}
# Which settings have defaults that only the version of a step can tell.
DEFAULTS = {"train": (EncoderSettings, Training), "evaluate": (Evaluation,)}


def defaults() -> dict[str, dict[str, Any]]:
    """Step -> setting -> default."""
    return {
        step: {f"{kind.__name__}.{name}": value for kind in kinds for name, value in plain_defaults(kind).items()}
        for step, kinds in DEFAULTS.items()
    }


def plain_defaults(kind: type) -> dict[str, Any]:
    fields = {name: field.default for name, field in kind.model_fields.items() if not field.is_required()}
    listed = tuple(kind for kinds in DEFAULTS.values() for kind in kinds)  # their fields are here by themselves
    fields = {name: default for name, default in fields.items() if not isinstance(default, listed)}
    return dict(json.loads(json.dumps(fields, default=str)))


def summary(values: Any) -> list[float]:
    """Mean, spread and a weighted sum, which sees the order."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    flat = flat[np.isfinite(flat)]
    return [float(flat.mean()), float(flat.std()), float(flat @ np.cos(np.arange(len(flat))))]


def tensors(path: Path) -> dict[str, list[float]]:
    found = {name: value for name, value in read_tensors(path)[0].items() if value.dtype.kind == "f"}
    return {f"{path.stem}/{name}": summary(value) for name, value in found.items()}


def results() -> dict[str, dict[str, list[float]]]:
    """Step -> what it computes -> numbers; in the present folder, with digits prepared."""
    plan = RunPlan(Run(NAME, NAME, RunSettings(dataset="digits", method="recorded", **SETTINGS)))
    folder = RunFolder.named(NAME)
    pipeline.train(plan)
    pipeline.fit(plan)
    pipeline.embed(plan)
    history = np.genfromtxt(folder.history_file, delimiter=",", names=True)
    curves = {name: history[name].tolist() for name in ("train_loss", "lr", "val_metric", "grad_norm")}
    embeddings = [tensors(folder.embeddings_file(split)) for split in ("val", "test", "ood", "last")]
    return {
        "train": curves | tensors(folder.path / "model_last.safetensors"),
        "fit": tensors(folder.path / "posterior.safetensors"),
        "embed": {name: values for split in embeddings for name, values in split.items()},
    }


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text())


def test_the_record_is_of_these_versions(recorded):
    assert recorded["versions"] == VERSIONS, "run `python tests/workflow/test_step_versions.py`"


@pytest.mark.parametrize("step", DEFAULTS)
def test_a_changed_default_raises_the_version(recorded, step):
    before, now = recorded["defaults"][step], defaults()[step]
    changed = {name: (value, now.get(name)) for name, value in before.items() if now.get(name) != value}
    assert not changed, f"raise the version of {step}: runs made with the old default would pass as new"


@pytest.fixture(scope="module")
def computed(prepared_dataset, tmp_path_factory):
    folder, here = tmp_path_factory.mktemp("versions"), Path.cwd()
    os.chdir(folder)
    try:
        link(prepared_dataset("digits"))
        yield results()
    finally:
        os.chdir(here)


@pytest.mark.parametrize("step", ["train", "fit", "embed"])
def test_a_step_that_computes_something_else_raises_its_version(recorded, computed, step):
    assert computed[step].keys() == recorded["results"][step].keys()
    for name, expected in recorded["results"][step].items():
        np.testing.assert_allclose(computed[step][name], expected, rtol=2e-3, atol=2e-4, err_msg=f"{step}: {name}")


def link(prepared: Path) -> None:
    Path("data/prepared").mkdir(parents=True)
    Path("data/prepared/digits").symlink_to(prepared)


def main() -> None:
    """Write the record anew."""
    import torch

    from probmetric.data import prepare_dataset

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        link(prepare_dataset("digits", Path(folder) / "digits", progress=False))
        found = {"versions": VERSIONS, "defaults": defaults(), "results": results()}
        os.chdir(RECORD.parent)
    write_json(RECORD, found)


if __name__ == "__main__":
    sys.exit(main())
