"""The steps of one run, on folders: each reads what the step before it wrote and writes its own files whole.

results/<run>/   model.safetensors  encoder.yaml  posterior.safetensors  embeddings/  metrics.json  run.yaml
state/<run>/     training checkpoints, gone when training is finished
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from probmetric.config import EncoderSettings, Params, RunSettings
from probmetric.io import FileError, read_tensors, read_yaml, write_json, write_tensors, write_yaml

if TYPE_CHECKING:
    import numpy as np
    import torch

RESULTS = Path("results")
STATE = Path("state/training")


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

    train_run(
        settings,
        prepared_folder=Path(settings.prepared) / settings.data,
        run_folder=RESULTS / run,
        state_folder=STATE / run,
        threads=threads,
    )


def fit_posterior(run: str, encoder_run: str, settings: RunSettings, *, threads: int = 1) -> None:
    """Fit the run's uncertainty on the training images and write `posterior.safetensors`."""
    import torch

    from probmetric.training import claim_device, load_encoder
    from probmetric.training.data import TrainingData
    from probmetric.uncertainty import create_uncertainty

    torch.set_num_threads(threads)
    uncertainty = create_uncertainty(settings.uncertainty.name, **settings.uncertainty.options)
    with claim_device("auto") as device:
        encoder, loss, trained = load_encoder(RESULTS / encoder_run, device)
        data = TrainingData(_prepared(settings), trained.training, seed=settings.seed, device=device)
        posterior = uncertainty.fit(
            encoder,
            (data.batch(rows, epoch=0) for rows in data.batches(0)),
            loss=loss,
            generator=torch.Generator(device=device).manual_seed(settings.seed),
            device=device,
        )
    write_tensors(RESULTS / run / "posterior.safetensors", posterior, {"uncertainty": settings.uncertainty.name})


def embed(run: str, encoder_run: str, settings: RunSettings, *, threads: int = 1) -> None:
    """Embed validation, test and OOD images with the selected weights, and test images with the last ones."""
    import torch

    from probmetric.training import claim_device

    torch.set_num_threads(threads)
    data = _prepared(settings)
    with claim_device("auto") as device:
        selected = _Embedder(run, encoder_run, settings, device, which="selected")
        selected.write("val", [(data, "val")])
        selected.write("test", [(data, "test")])
        selected.write("ood", [(Path(settings.prepared) / name, "test") for name in settings.ood])
        _Embedder(run, encoder_run, settings, device, which="last").write("last", [(data, "test")])


class _Embedder:
    """Turns splits of prepared datasets into embeddings files of one run."""

    def __init__(
        self,
        run: str,
        encoder_run: str,
        settings: RunSettings,
        device: torch.device,
        which: Literal["selected", "last"],
    ) -> None:
        from probmetric.training import load_encoder
        from probmetric.uncertainty import create_uncertainty

        self.folder, self.settings, self.device = RESULTS / run, settings, device
        self.encoder, self.loss, self.trained = load_encoder(RESULTS / encoder_run, device, which)
        # A fitted posterior belongs to the selected weights; the last ones are compared by their mean alone.
        fitted = which == "selected" and (self.folder / "posterior.safetensors").exists()
        chosen = settings.uncertainty if which == "selected" else RunSettings.model_fields["uncertainty"].default
        self.uncertainty = create_uncertainty(chosen.name, **chosen.options)
        self.posterior = None
        if fitted and self.uncertainty.fits:
            tensors, _ = read_tensors(self.folder / "posterior.safetensors", framework="torch")
            self.posterior = {name: tensor.to(device) for name, tensor in tensors.items()}

    def write(self, name: str, sources: Sequence[tuple[Path, str]]) -> None:
        """Write `embeddings/<name>.safetensors` for the given (prepared folder, split) pairs."""
        import torch

        parts = [self._embed(folder, split) for folder, split in sources]
        if not parts:
            parts = [self._nothing()]
        tensors = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        if name == "ood":
            sizes = torch.tensor([len(part["label"]) for part in parts[: len(sources)]], dtype=torch.int64)
            tensors["source"] = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
            tensors["label"] = torch.full_like(tensors["label"], -1)
        metadata = {
            "split": name,
            "dataset": self.settings.data,
            "uncertainty": self.settings.uncertainty.name,
            "sources": json.dumps([folder.name for folder, _ in sources]),
        }
        write_tensors(self.folder / "embeddings" / f"{name}.safetensors", tensors, metadata)

    def _embed(self, folder: Path, split: str) -> dict[str, torch.Tensor]:
        from probmetric.data.batches import SplitImages
        from probmetric.training.data import training_transform

        transform = training_transform(self.trained.training.augment, self.trained.dataset).evaluation()
        images = SplitImages(folder, split, transform=transform, device=self.device)
        found = self.uncertainty.embed_batches(
            self.encoder, images.batches(), posterior=self.posterior, loss=self.loss, seed=self.settings.seed
        )
        return found.to("cpu").tensors() | {"label": images.labels, "index": images.index}

    def _nothing(self) -> dict[str, torch.Tensor]:
        import torch

        none = torch.empty(0, dtype=torch.int64)
        return {"mean": torch.empty(0, self.encoder.dim), "uncertainty": torch.empty(0), "label": none, "index": none}


def evaluate(run: str, encoder_run: str, settings: RunSettings) -> None:
    """Measure the embeddings of `run`; write metrics.json, curves.json and the run's full record, run.yaml."""
    from probmetric.evaluation.evaluator import evaluate_run

    folder, chosen = RESULTS / run, settings.evaluation
    metrics, curves = evaluate_run(
        folder,
        {"ks": chosen.ks, "clustering": chosen.clustering, "seed": chosen.seed, "bins": chosen.calibration_bins},
        ambiguity=_ambiguity(_prepared(settings)),
    )
    write_json(folder / "metrics.json", metrics)
    write_json(folder / "curves.json", curves)
    record = read_yaml(RESULTS / encoder_run / "encoder.yaml")
    write_yaml(folder / "run.yaml", record | {"run": run, "encoder": encoder_run, "settings": settings.plain()})


def _ambiguity(folder: Path) -> np.ndarray | None:
    """Known ambiguity of every image of a prepared dataset, where its manifest has that column."""
    from probmetric.data.manifest import read_table

    table, _ = read_table(folder)
    return table.column("ambiguity").to_numpy() if "ambiguity" in table.column_names else None


def _prepared(settings: EncoderSettings) -> Path:
    return Path(settings.prepared) / settings.data
