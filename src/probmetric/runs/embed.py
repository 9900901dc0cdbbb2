"""A run's encoder with its uncertainty: images to directional distributions, splits to embeddings files."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.config import EncoderSettings, RunSettings
from probmetric.runs.folder import RunFolder, Split, Which
from probmetric.runs.names import RESULTS
from probmetric.runs.plan import encoder_runs

if TYPE_CHECKING:
    import torch

    from probmetric.data.images import Eye, PreparedImages
    from probmetric.training.assemble import Assembly
    from probmetric.training.processes import Processes


def load_trained(encoder_run: str, settings: RunSettings, device: torch.device, which: Which) -> Assembly:
    """Load the encoder of `encoder_run`, or all that the run's uncertainty combines as one, with its loss."""
    from probmetric.training.assemble import combined, load_encoder

    names = encoder_runs(encoder_run, settings.uncertainty)
    return combined([load_encoder(RESULTS / name, device, which) for name in names])


def fit_uncertainty(settings: RunSettings, made: Assembly, device: torch.device) -> dict[str, torch.Tensor]:
    """Fit the posterior of the run's uncertainty for loaded weights."""
    from probmetric.training.data import TrainingData, training_images, training_view

    folder, training = prepared_folder(settings), made.settings.training
    images = training_images(folder, training, view=training_view(made.settings, folder))
    data = TrainingData(images, training, seed=settings.seed, device=device)
    return made.fit_posterior(settings.uncertainty, data.training_pass(), data.validation_pass(), settings.seed, device)


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
        made = load_trained(encoder_run, settings, device, which)
        self.loss, self.trained = made.loss, made.settings
        facts = RunFolder.named(encoder_run).encoder["encoder"]
        self.shape: tuple[int, int] = facts["in_channels"], facts["image_size"]
        chosen = settings.uncertainty
        if plain and len(encoder_runs(encoder_run, settings.uncertainty)) == 1:
            chosen = RunSettings.model_fields["uncertainty"].default
        posterior = None
        if create_uncertainty(chosen.name, **chosen.options).fits:
            posterior = self._stored_posterior() if which == "selected" else fit_uncertainty(settings, made, device)
        self.predictor = made.predictor(chosen, posterior, settings.seed)

    def _stored_posterior(self) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self.device) for name, tensor in self.folder.posterior().items()}

    def write(self, name: Split, sources: Sequence[tuple[Path, str]]) -> tuple[float, int]:
        """Write the embeddings `name` of the given (prepared folder, split) pairs.

        Returns:
            Seconds from images on disk to distributions on the CPU, and the number of images; files not included.
        """
        import torch

        started = time.perf_counter()
        images = [self.images(folder, split) for folder, split in sources]
        classified = name != "ood" and all(set(each.labels) <= set(self._training_classes) for each in images)
        parts = [self._embed(each, classified) for each in images]
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

    def _embed(self, images: PreparedImages, classified: bool) -> dict[str, torch.Tensor]:
        """Tensors of the images in the first process, none in the others; class probabilities only where they count."""
        import torch

        from probmetric.training.forward import represented

        # probabilities of classes that no image has, once per draw, would take longer than all the rest
        predictor = dataclasses.replace(self.predictor, classifies=classified)
        parts = represented(predictor, functools.partial(self.batches, images), self.processes)
        if not self.processes.first:
            return {}
        numbers = {"label": torch.from_numpy(images.labels), "index": torch.from_numpy(images.index)}
        return predictor.describe(parts).tensors() | numbers

    def images(self, folder: Path, split: str) -> PreparedImages:
        """Open a split of a prepared dataset."""
        from probmetric.data.images import PreparedImages

        return PreparedImages.of_split(folder, split)

    def batches(self, images: PreparedImages, *, first: int = 0, step: int = 1) -> Iterator[torch.Tensor]:
        """Yield images as the encoder's input, see `data.images.batches`."""
        from probmetric.data.images import batches

        return batches(images, self.eye, self.device, first=first, step=step)

    @functools.cached_property
    def eye(self) -> Eye:
        """How the encoder sees images: by the evaluation view of the dataset it was trained on."""
        from probmetric.data.images import Eye
        from probmetric.training.data import training_view

        return Eye(training_view(self.trained, prepared_folder(self.trained)).evaluation(), self.shape)

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
