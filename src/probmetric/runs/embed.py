"""Embed images with a run's encoder and uncertainty as directional distributions; write embeddings of splits."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from probmetric.config import RunSettings
from probmetric.data import load_columns
from probmetric.data.choosing import trained_on
from probmetric.data.images import BATCH, Eye, PreparedImages, batches
from probmetric.launch import Place
from probmetric.metrics.arrays import Ints
from probmetric.runs.folder import RunFolder, Split, Which
from probmetric.runs.names import FEATURES, RESULTS
from probmetric.runs.plan import Run
from probmetric.training.assemble import Assembly, combined, load_encoder
from probmetric.training.data import TrainingData, training_images, training_view
from probmetric.training.device import claim_device
from probmetric.training.features import Features, on_features, shared
from probmetric.training.forward import represented
from probmetric.training.processes import ALONE, Processes, joined
from probmetric.uncertainty import create_uncertainty


def load_trained(run: Run, device: torch.device, which: Which) -> Assembly:
    """Load the encoder that `run` uses with its loss; several encoders that its uncertainty combines count as one."""
    return combined([load_encoder(RESULTS / name, device, which) for name in run.encoders])


def fit_uncertainty(settings: RunSettings, made: Assembly, device: torch.device) -> dict[str, torch.Tensor]:
    """Fit the posterior of the run's uncertainty for loaded weights."""
    folder, training = settings.data_folder, made.settings.training
    images = training_images(folder, training, view=training_view(made.settings, folder))
    data = TrainingData(images, training, seed=settings.seed, device=device)
    if not create_uncertainty(settings.uncertainty.name, **settings.uncertainty.options).reads_images:
        encoder, data = on_features(made.settings, made.encoder, images, data, FEATURES)
        made = made._replace(encoder=encoder)
    return data.fit_posterior(made, settings.uncertainty)


def fit_posterior(run: Run) -> None:
    """Fit the run's uncertainty on the training images and write its posterior."""
    with claim_device("auto") as device:
        posterior = fit_uncertainty(run.settings, load_trained(run, device, "selected"), device)
    RunFolder.named(run.name).write_posterior(posterior, run.settings.uncertainty.name)


def embed_splits(run: Run, place: Place) -> None:
    """Write the run's embeddings of all splits, and the time of embedding the test split."""
    settings = run.settings
    with joined(place) as processes, claim_device("auto") as device:
        selected = Embedder(run, device, processes)
        selected.write("val", [(settings.data_folder, "val")])
        taken, images = selected.write("test", [(settings.data_folder, "test")])
        selected.write("ood", [(Path(settings.prepared) / name, "test") for name in settings.ood])
        last = Embedder(run, device, processes, which="last", plain=True)
        last.write("last", [(settings.data_folder, "test")])
        if processes.first:
            timing = {"embedding/test_seconds": taken, "embedding/images_per_second": images / taken}
            RunFolder.named(run.name).write_timing(timing)


def embed_training_images(
    run: Run,
) -> tuple[NDArray[np.floating], Ints, tuple[NDArray[np.floating], Ints] | None]:
    """Return unit embeddings (N, M) of the training images, their class numbers (N,) in the loss, and its proxies.

    Proxies (P, M) come with the class (P,) of each; None if the loss has none.
    """
    with claim_device("auto") as device, torch.inference_mode():
        embedder = Embedder(run, device, ALONE, plain=True)
        images = PreparedImages.of_split(run.settings.data_folder, "train")
        rows = dataclasses.replace(embedder.predictor, loss=None)(embedder.batches(images)).mean
        proxies = embedder.loss.class_proxies() if embedder.loss is not None else None
    labels = np.searchsorted(embedder._training_classes, images.labels)
    return rows.numpy(), labels, None if proxies is None else (proxies[0].cpu().numpy(), proxies[1].cpu().numpy())


class Embedder:
    """A run's predictor, and the images that it embeds: splits of prepared datasets, or files."""

    def __init__(
        self, run: Run, device: torch.device, processes: Processes, *, which: Which = "selected", plain: bool = False
    ) -> None:
        """Load the encoder with its `which` weights; `plain` leaves the uncertainty out if possible."""
        self.folder, self.settings, self.device, self.dim = RunFolder.named(run.name), run.settings, device, 0
        self.processes = processes
        made = load_trained(run, device, which)
        self.loss, self.trained = made.loss, made.settings
        facts = RunFolder.named(run.encoder).encoder["encoder"]
        self.shape: tuple[int, int] = facts["in_channels"], facts["image_size"]
        chosen = run.settings.uncertainty
        if plain and len(run.encoders) == 1:
            chosen = RunSettings.model_fields["uncertainty"].default
        uncertainty, posterior = create_uncertainty(chosen.name, **chosen.options), None
        if uncertainty.fits:
            if which == "selected":
                posterior = {name: tensor.to(device) for name, tensor in self.folder.posterior().items()}
            else:
                posterior = fit_uncertainty(run.settings, made, device)
        parts = None if uncertainty.reads_images else shared(made.settings, made.encoder, self.eye, FEATURES)
        self.features = parts and parts.store
        if parts:
            made = made._replace(encoder=parts.rest.eval())
        self.predictor = made.predictor(chosen, posterior, run.settings.seed)

    def write(self, name: Split, sources: Sequence[tuple[Path, str]]) -> tuple[float, int]:
        """Write the embeddings `name` of the given (prepared folder, split) pairs.

        Returns:
            Seconds from images on disk to distributions on the CPU, without writing files, and the number of images.
            The time in which shared features were computed is included.
        """
        images = [PreparedImages.of_split(folder, split) for folder, split in sources]
        computing = sum(self._shared(each).seconds for each in images) if self.features else 0.0
        started = time.perf_counter()
        classified = name != "ood" and all(set(each.labels) <= set(self._training_classes) for each in images)
        parts = [self._embed(each, classified) for each in images]
        seconds = time.perf_counter() - started + computing
        if not self.processes.first:
            return seconds, 0
        if not parts:
            none = torch.empty(0, dtype=torch.int64)
            parts = [{"mean": torch.empty(0, self.dim), "uncertainty": torch.empty(0), "label": none, "index": none}]
        tensors = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        self.dim = tensors["mean"].shape[1]
        if not classified:
            tensors.pop("probabilities", None)  # from an uncertainty that always samples
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
        """Embed images in the first process only; compute class probabilities only where they are used."""
        # for classes without images, probabilities of every draw would take longer than all the rest
        predictor = dataclasses.replace(self.predictor, classifies=classified)
        parts = represented(predictor, functools.partial(self.batches, images), self.processes)
        if not self.processes.first:
            return {}
        numbers = {"label": torch.from_numpy(images.labels), "index": torch.from_numpy(images.index)}
        return predictor.describe(parts).tensors() | numbers

    def batches(self, images: PreparedImages, *, first: int = 0, step: int = 1) -> Iterator[torch.Tensor]:
        """Yield images as the encoder's input, see `data.images.batches`, or the shared features in place of images."""
        if self.features is None:
            return batches(images, self.eye, self.device, first=first, step=step)
        parts = self._shared(images).rows.split(BATCH)
        return (part.to(self.device) for part in parts[first::step])

    def _shared(self, images: PreparedImages) -> Features:
        assert self.features is not None
        return self.features.read(images, images.digest, self.device)

    @functools.cached_property
    def eye(self) -> Eye:
        """How the encoder sees images: through the evaluation view of the dataset it was trained on."""
        return Eye(training_view(self.trained, self.trained.data_folder).evaluation(), self.shape)

    @functools.cached_property
    def _training_classes(self) -> list[int]:
        """Manifest label of each training class, in the order of the loss's classes (columns of `probabilities`)."""
        columns = load_columns(self.settings.data_folder, ["label", "split"])
        learnt = np.isin(columns["split"], trained_on(self.trained.training.selection))
        return np.unique(columns["label"][learnt]).tolist()
