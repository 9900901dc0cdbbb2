"""The steps of one run, on folders: each reads what the step before it wrote and writes its own files whole.

results/<run>/   model.safetensors  encoder.yaml  posterior.safetensors  embeddings/  metrics.json  run.yaml
state/<run>/     training checkpoints, gone when training is finished
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.config import EncoderSettings, Params, RunSettings
from probmetric.io import FileError, read_yaml, write_json, write_tensors, write_yaml

if TYPE_CHECKING:
    pass

RESULTS = Path("results")
STATE = Path("state/training")
EMBED_BATCH = 256


def ensure_data(params: Params, name: str) -> None:
    """Bring prepared dataset `name` (`glyphs`, `glyphs+noise0.2`) up to date through DVC.

    Inside a DVC stage the data is up to date already (DVC locks it meanwhile); only its digest is written again.

    Raises:
        FileError: DVC could not prepare it; its own message is on standard error.
    """
    from probmetric.data.digest import write_digest

    folder = Path(params.data.prepared) / name
    if "DVC_STAGE" in os.environ:
        write_digest(folder)
        return
    dataset, _, rate = name.partition("+noise")
    stage = f"noise@{dataset}-{rate}" if rate else f"prepare@{dataset}"
    if subprocess.run(["dvc", "repro", stage], check=False).returncode:
        raise FileError(f"`dvc repro {stage}` failed; its message is above.")


def train(run: str, settings: EncoderSettings, *, threads: int = 1) -> None:
    """Train the encoder of `run` into `results/<run>`, going on from `state/training/<run>` if it was interrupted."""
    from probmetric.training import train_run

    _use_threads(threads)
    train_run(
        settings,
        prepared_folder=Path(settings.prepared) / settings.data,
        run_folder=RESULTS / run,
        state_folder=STATE / run,
        progress=True,
    )


def fit_posterior(run: str, encoder_run: str, settings: RunSettings, *, threads: int = 1) -> None:
    """Fit the run's uncertainty on the training images and write `posterior.safetensors`."""
    import torch

    from probmetric.training import load_encoder, pick_device
    from probmetric.uncertainty import create_uncertainty

    _use_threads(threads)
    device = pick_device()
    encoder, loss, trained = load_encoder(RESULTS / encoder_run, device)
    uncertainty = create_uncertainty(settings.uncertainty.name, **settings.uncertainty.options)
    posterior = uncertainty.fit(
        encoder,
        training_batches(trained, augmented=uncertainty.trains),
        loss=loss,
        generator=torch.Generator(device=device).manual_seed(settings.seed),
        device=device,
    )
    write_tensors(RESULTS / run / "posterior.safetensors", posterior, {"uncertainty": settings.uncertainty.name})


def embed(run: str, encoder_run: str, settings: RunSettings, *, threads: int = 1) -> None:
    """Embed validation, test and OOD images with the selected weights, and test images with the last ones."""
    _use_threads(threads)
    embedder = _Embedder(run, encoder_run, settings)
    for split in ("val", "test"):
        embedder.write(split, [(settings.data, split)])
    embedder.write("ood", [(name, "test") for name in settings.ood])
    _Embedder(run, encoder_run, settings, which="last").write("last", [(settings.data, "test")])


def evaluate(run: str, encoder_run: str, settings: RunSettings) -> None:
    """Measure the embeddings of `run`; write metrics.json, curves.json and the run's full record, run.yaml."""
    from probmetric.evaluation.evaluator import evaluate_run

    folder = RESULTS / run
    metrics, curves = evaluate_run(folder, settings)
    write_json(folder / "metrics.json", metrics)
    write_json(folder / "curves.json", curves)
    record = read_yaml(RESULTS / encoder_run / "encoder.yaml")
    write_yaml(folder / "run.yaml", record | {"run": run, "encoder": encoder_run, "settings": settings.plain()})
