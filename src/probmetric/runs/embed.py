"""A run's encoder with its uncertainty: images to directional distributions, splits to embeddings files."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from probmetric.config import EncoderSettings, RunSettings
from probmetric.planning.runs import encoder_runs
from probmetric.runs.folder import RunFolder, Split, Which
from probmetric.runs.names import RESULTS

if TYPE_CHECKING:
    import torch

    from probmetric.data.reader import SplitReader
    from probmetric.data.views import View
    from probmetric.losses import Loss
    from probmetric.models import Encoder
    from probmetric.training.processes import Processes

    Trained = tuple[Encoder, Loss | None, EncoderSettings]


def load_trained(encoder_run: str, settings: RunSettings, device: torch.device, which: Which) -> Trained:
    """The encoder of `encoder_run`, or all that the run's uncertainty combines as one, loss and training settings."""
    from probmetric.training import load_encoder

    names = encoder_runs(encoder_run, settings.uncertainty)
    loaded = [load_encoder(RESULTS / name, device, which) for name in names]
    if len(loaded) == 1:
        return loaded[0]
    from probmetric.uncertainty.ensemble import EncoderEnsemble

    _, loss, trained = loaded[0]
    return cast("Encoder", EncoderEnsemble([encoder for encoder, _, _ in loaded])), loss, trained


def fit_uncertainty(settings: RunSettings, loaded: Trained, device: torch.device) -> dict[str, torch.Tensor]:
    """The posterior of the run's uncertainty for loaded weights."""
    import torch

    from probmetric.training.data import TrainingData, training_view
    from probmetric.training.passes import TrainingPass, ValidationPass
    from probmetric.uncertainty import create_uncertainty

    encoder, loss, trained = loaded
    uncertainty = create_uncertainty(settings.uncertainty.name, **settings.uncertainty.options)
    folder = prepared_folder(settings)
    view = training_view(trained, folder)
    data = TrainingData(folder, trained.training, seed=settings.seed, device=device, view=view)
    return uncertainty.fit(
        encoder,
        TrainingPass(data),
        loss=loss,
        generator=torch.Generator(device=device).manual_seed(settings.seed),
        device=device,
        validation=ValidationPass(data) if data.has_validation else None,
    )


class Embedder:
    """A run's predictor, and the images it is asked about: splits of prepared datasets, or files."""

    def __init__(
        self,
        run: str,
        encoder_run: str,
        settings: RunSettings,
        device: torch.device,
        processes: Processes,
        which: Which,
        *,
        plain: bool = False,
    ) -> None:
        """Load the encoder with its `which` weights; `plain` leaves the uncertainty out where one can."""
        from probmetric.uncertainty import create_uncertainty

        self.folder, self.settings, self.device, self.dim = RunFolder.named(run), settings, device, 0
        self.processes = processes
        loaded = load_trained(encoder_run, settings, device, which)
        encoder, self.loss, self.trained = loaded
        facts = RunFolder.named(encoder_run).encoder["encoder"]
        self.shape: tuple[int, int] = facts["in_channels"], facts["image_size"]
        chosen = settings.uncertainty
        if plain and len(encoder_runs(encoder_run, settings.uncertainty)) == 1:
            chosen = RunSettings.model_fields["uncertainty"].default
        uncertainty = create_uncertainty(chosen.name, **chosen.options)
        posterior = None
        if uncertainty.fits:
            posterior = self._stored_posterior() if which == "selected" else fit_uncertainty(settings, loaded, device)
        self.predictor = uncertainty.bind(encoder, loss=self.loss, posterior=posterior, seed=settings.seed)

    def _stored_posterior(self) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self.device) for name, tensor in self.folder.posterior().items()}

    def write(self, name: Split, sources: Sequence[tuple[Path, str]]) -> tuple[float, int]:
        """Write the embeddings `name` of the given (prepared folder, split) pairs.

        Returns:
            Seconds from images on disk to distributions on the CPU, and the number of images; files not included.
        """
        import torch

        started = time.perf_counter()
        readers = [self.reader(folder, split) for folder, split in sources]
        classified = name != "ood" and all(self._seen(reader.labels) for reader in readers)
        parts = [self._embed(reader, classified) for reader in readers]
        seconds = time.perf_counter() - started
        if not self.processes.first:
            return seconds, 0
        if not parts:
            parts = [self._nothing()]
        tensors = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        self.dim = tensors["mean"].shape[1]
        if not classified:
            tensors.pop("probabilities", None)  # of an uncertainty that cannot do without them
        if name == "ood":
            sizes = torch.tensor([len(part["label"]) for part in parts[: len(sources)]], dtype=torch.int64)
            tensors["source"] = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
            tensors["label"] = torch.full_like(tensors["label"], -1)
        metadata = {
            "split": name,
            "dataset": self.settings.data,
            "uncertainty": self.settings.uncertainty.name,
            "sources": json.dumps([folder.name for folder, _ in sources]),
            "classes": json.dumps(self._training_classes),
        }
        curvature = getattr(self.loss, "curvature", None)
        if curvature is not None:
            metadata["curvature"] = str(curvature)
        self.folder.write_embeddings(name, tensors, metadata)
        return seconds, len(tensors["label"])

    def _embed(self, reader: SplitReader, classified: bool) -> dict[str, torch.Tensor]:
        """Tensors of the images in the first process, none in the others; class probabilities only where they count."""
        from probmetric.training.forward import represented
        from probmetric.uncertainty._unclassified import unclassified

        # of classes that no image is of, once per draw, they would take longer than all the rest
        predictor = self.predictor if classified else unclassified(self.predictor)
        parts = represented(predictor, reader, self.processes)
        found = predictor.describe(parts) if self.processes.first else None
        return found.tensors() | {"label": reader.labels, "index": reader.index} if found else {}

    def reader(self, folder: Path, split: str) -> SplitReader:
        """Images of a split of a prepared dataset as the encoder's input."""
        from probmetric.data.reader import SplitReader

        return SplitReader(folder, split, self.transform, shape=self.shape, device=self.device)

    @functools.cached_property
    def transform(self) -> View:
        """Evaluation view of the dataset the encoder was trained on."""
        from probmetric.training.data import training_view

        return training_view(self.trained, prepared_folder(self.trained)).evaluation()

    def _seen(self, labels: torch.Tensor) -> bool:
        """Whether every one of the labels (N,) is of a training class."""
        return set(labels.tolist()) <= set(self._training_classes)

    @functools.cached_property
    def _training_classes(self) -> list[int]:
        """Manifest label of each training class, in the order of the loss's classes (columns of `probabilities`)."""
        import numpy as np

        from probmetric.data import load_columns

        columns = load_columns(prepared_folder(self.settings), ["label", "split"])
        return np.unique(columns["label"][columns["split"] == "train"]).tolist()

    def _nothing(self) -> dict[str, torch.Tensor]:
        import torch

        none = torch.empty(0, dtype=torch.int64)
        return {"mean": torch.empty(0, self.dim), "uncertainty": torch.empty(0), "label": none, "index": none}


def prepared_folder(settings: EncoderSettings) -> Path:
    """Folder of the dataset a run is about."""
    return Path(settings.prepared) / settings.data
