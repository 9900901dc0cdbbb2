"""Use a trained model: embed images as directional distributions, and answer them from a gallery."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram

from probmetric.config import Evaluation
from probmetric.data.images import Eye, readable_batches
from probmetric.data.loose import LooseImages, loose_images, named, named_problems, problem_list, sequence_of
from probmetric.data.manifest import DataError
from probmetric.errors import ProbMetricError, ServingError
from probmetric.io import FileError
from probmetric.io.folders import new_folder
from probmetric.models import Encoder
from probmetric.models._regions import draw_match
from probmetric.models._wrapped import wrapped
from probmetric.retrieval.measures import checked_cutoffs
from probmetric.runs.folder import Embeddings
from probmetric.serving.canary import CHECKED, IMAGES, canaries, warn_if_moved
from probmetric.serving.canary import sound as sound_canary
from probmetric.serving.card import card
from probmetric.serving.export import Graph, exported, write_onnx
from probmetric.serving.gallery import Gallery, OnError
from probmetric.serving.looks import looks, same
from probmetric.serving.model_folder import BROKEN, MEMBER, POSTERIOR, REFERENCE, Parts, check_sizes, parts_of
from probmetric.serving.record import Member
from probmetric.serving.search import Answer, Queries, Rules
from probmetric.training.assemble import Assembly, Sizes, combined, restored
from probmetric.training.device import pick_device
from probmetric.trust.certificates import Certificate
from probmetric.uncertainty import REGISTRY as UNCERTAINTIES
from probmetric.uncertainty import DirectionalBatch, Predictor, create_uncertainty

log = logging.getLogger(__name__)


class Embedded(NamedTuple):
    """Embeddings of the images that could be read.

    Attributes:
        batch: their distributions (N, ...).
        kept: their positions among the images given (N,).
        problems: (name, reason) of the others.
        looks: pixel statistics of the images (N, L), see `looks`.
    """

    batch: DirectionalBatch
    kept: np.ndarray
    problems: list[tuple[str, str]]
    looks: np.ndarray


class Model:
    """A trained encoder with its uncertainty; made by `probmetric.load` or `probmetric.fit`.

    Attributes:
        parts: its record and tensors.
        record: all facts about it.
        classes: the training classes, in the order of `probabilities`.
        digest: SHA-256 of everything that decides its embeddings.
        reference: uncertainty of each of the run's validation images, sorted (V,); None without validation images.
    """

    def __init__(self, parts: Parts, made: Assembly, device: torch.device | str) -> None:
        """Bind encoder and loss, which have the parts' weights, to the uncertainty.

        Raises:
            FileError: the posterior or the reference does not fit the record.
        """
        self.parts, self.reference, self.record = parts, _reference(parts), parts.record
        self.classes, self.digest, self.name = self.record.classes, self.record.digest, self.record.name
        posterior, transform = parts.tensors.get(POSTERIOR), self.record.transform
        placed = None if posterior is None else {name: tensor.to(device) for name, tensor in posterior.items()}
        try:
            self.predictor = made.to(device).predictor(self.record.uncertainty, placed, self.record.seed)
        except ValueError as error:
            raise FileError(f"{POSTERIOR} of {self.name} does not fit its record: {error}") from error
        self.eye = Eye(transform.created(), self.record.shape, transform.shorter_side)

    def __repr__(self) -> str:
        channels, side = self.eye.shape
        return f"<Model {self.name}: images {channels}x{side}x{side}, uncertainty {self.record.uncertainty.name}>"

    @property
    def card(self) -> str:
        """The model card, in Markdown."""
        return card(self.record)

    def embed(self, images: Any, *, samples: bool = False) -> DirectionalBatch:
        """Return directional distributions of images, on the CPU.

        Args:
            images: one or a sequence of paths, bytes of files, PIL images, arrays (H, W, C), tensors (C, H, W); or a
                `torch.utils.data.Dataset` of them.
            samples: also draw samples (B, S, M), if the uncertainty can.

        Raises:
            DataError: images cannot be read; all of them are named.
        """
        return self.embedded(sequence_of(images, self.eye.ndim), samples=samples).batch

    def embedded(self, images: Sequence[Any], *, on_error: OnError = "raise", samples: bool = False) -> Embedded:
        """Embed images and say which were read; with `on_error="skip"` the others are left out."""
        if not len(images):
            raise DataError("there is no image to embed.")
        unreadable: dict[int, DataError] = {}
        seen: list[np.ndarray] = []
        predictor = self._sampling() if samples else self.predictor
        parts = predictor.represent(self._batches(images, unreadable, seen))
        problems = named_problems(images, unreadable)
        kept = np.array([row for row in range(len(images)) if row not in unreadable], dtype=np.int64)
        if problems and (on_error == "raise" or not len(kept)):
            raise problem_list(
                problems, len(images), "mend or remove them; index and vectors can leave them out (on_error: skip)"
            )
        return Embedded(predictor.describe(parts), kept, problems, np.concatenate(seen))

    def looks(self, images: Sequence[Any]) -> np.ndarray:
        """Return the looks of images (N, L), see `looks`; images that cannot be read are left out."""
        seen: list[np.ndarray] = []
        for _ in self._batches(images, {}, seen):
            pass
        return np.concatenate(seen) if seen else np.empty((0, 0), dtype=np.float32)

    def trained_on(self, looks: np.ndarray) -> np.ndarray:
        """Say which images (N,) the model was trained on, by their `looks` (N, L).

        An image is recognised by its exact pixels; a recompressed or cropped copy is not recognised.
        """
        return same(looks, self._training_looks)

    @functools.cached_property
    def _training_looks(self) -> np.ndarray:
        """Return looks (T, L) of the images that the model was trained on; (0, 0) if they are unknown."""
        stored = self.parts.tensors[REFERENCE].get("looks")
        if stored is not None:
            return stored.numpy()
        images = self.parts.training_images()
        if len(images):
            log.info("reading the %d training images, to recognise them later", len(images))
        return self.looks(images)

    @functools.cached_property
    def canary(self) -> np.ndarray | None:
        """Embeddings (8, M) of the images of `canary`, made on this machine; None if such inputs cannot be drawn."""
        rows = self._drawn_images(IMAGES)
        return rows if rows is not None and sound_canary(rows) else None

    @functools.cached_property
    def checked_canary(self) -> np.ndarray | None:
        """Embeddings (3, M) of the first images of `canary`, compared when a model folder or a gallery is opened."""
        return self._drawn_images(CHECKED)

    def _drawn_images(self, count: int) -> np.ndarray | None:
        with contextlib.suppress(ProbMetricError, ValueError):
            return self.embed(canaries(self.eye.shape, self.eye.tensor)[:count]).mean.numpy()
        return None

    def _sampling(self) -> Predictor:
        """Return the predictor, with an uncertainty that keeps its samples."""
        component = self.record.uncertainty
        if "keep_samples" not in UNCERTAINTIES.options(component.name):
            raise ServingError(f"uncertainty {component.name!r} draws no samples; leave out samples=True.")
        options = component.options | {"keep_samples": True}
        return replace(self.predictor, uncertainty=create_uncertainty(component.name, **options))

    @property
    def device(self) -> torch.device:
        """Return the device of the network; the CPU for a network without parameters."""
        return next(iter(self.predictor.encoder.parameters()), torch.empty(0)).device

    def _batches(
        self, images: Sequence[Any], unreadable: dict[int, DataError], seen: list[np.ndarray]
    ) -> Iterator[torch.Tensor]:
        """Yield the encoder's input, batch by batch.

        The looks of the images are added to `seen`, the errors of unreadable images to `unreadable`, by row.
        """
        for batch in readable_batches(LooseImages(images, eye=self.eye), self.eye, self.device, unreadable):
            seen.append(looks(batch))
            yield batch

    def preprocess(self, images: Any) -> torch.Tensor:
        """Return the network's input (N, C, S, S) of images (as for `embed`), which an exported network takes.

        Raises:
            DataError: there is no image, or images cannot be read; all of them are named.
        """
        unreadable: dict[int, DataError] = {}
        listed = sequence_of(images, self.eye.ndim)
        if not len(listed):
            raise DataError("there is no image to preprocess.")
        batches = list(self._batches(listed, unreadable, []))
        if unreadable:
            raise problem_list(named_problems(listed, unreadable), len(listed), "mend or remove them")
        return torch.cat(batches).cpu()

    def search(
        self, gallery: Gallery, images: Any, *, k: int = 5, risk: float | Certificate | None = None, **rules: Any
    ) -> list[Answer]:
        """Return the nearest gallery images of each image, and how far the answer can be trusted.

        Args:
            gallery: made by a model of the same digest.
            images: as for `embed`.
            k: matches per image.
            risk: largest share of wrong answers among those given; a certificate of the gallery (`Gallery.certify`)
                then decides which answers are given. Or the certificate itself.
            rules: confidence, withhold, strangers and any_image, see `search.Rules`.

        Raises:
            ServingError: the gallery is of another model or empty, or an argument is out of range.
            CertificateError: there is no certificate for this risk, gallery and model.
            DataError: images cannot be read; all of them are named.
        """
        wanted = Rules(risk, **rules)
        if wanted.withhold < 1 and self.reference is None:
            raise ServingError("this model has no validation images to compare with; leave out `withhold`.")
        gallery.check_model(self)
        gallery.certificate_for(wanted)  # before the images are embedded
        listed = sequence_of(images, self.eye.ndim)
        embedded = self.embedded(listed)
        record = {"mean": embedded.batch.mean.numpy(), "uncertainty": embedded.batch.uncertainty.numpy()}
        doubt = None if self.reference is None else _surer(self.reference, record["uncertainty"])
        names = [named(image, number) for number, image in enumerate(listed)]
        return gallery.answers(Queries(names, record, embedded.looks, doubt), k, wanted)

    def evaluate(
        self, images: Any, class_names: Sequence[str] | None = None, *, ks: Sequence[int] = (1, 2, 4, 8)
    ) -> dict[str, float]:
        """Return metrics of labelled images, each asked among the others; `docs/reference/evaluation.md` defines them.

        Args:
            images: as for `Gallery.add`: a folder with one folder per class, a prepared dataset, or a
                `torch.utils.data.Dataset` of (image, label).
            class_names: their classes (N,), if `images` does not contain them.
            ks: cutoffs k of recall@k.

        Raises:
            ServingError: images have no class.
            DataError: images cannot be read; all of them are named.
            ValueError: `ks` are no cutoffs.
        """
        from probmetric.runs.evaluate import answer_metrics, answers_among_others

        cutoffs = checked_cutoffs(ks)
        items = loose_images(images, None, class_names)
        if "" in items.class_names:
            raise ServingError("images without a class: nobody can say which answers are right. Name their classes.")
        labels = np.unique([*self.classes, *items.class_names], return_inverse=True)[1]
        tensors = {name: values.numpy() for name, values in self.embed(items.images).tensors().items()}
        tensors["label"] = labels[len(self.classes) :]
        classes = json.dumps(labels[: len(self.classes)].tolist())
        test = Embeddings(tensors, {"uncertainty": self.record.uncertainty.name, "classes": classes})
        return answer_metrics(test, Evaluation(ks=cutoffs), answers_among_others(test, cutoffs)).metrics

    def save(self, folder: str | Path, *, license: str = "") -> Path:
        """Write the model folder: self-contained, loadable anywhere, without code of its own.

        A model that `fit` made from your own network is loaded with that network: `load(folder, network=...)`.

        Args:
            folder: a new folder, or a model folder, which is replaced.
            license: terms of use, for the model card.

        Raises:
            FileError: the folder holds files that do not belong to a model folder.
        """
        told = {} if self.canary is None else {"canary": torch.from_numpy(self.canary)}
        return self._with_looks().with_reference(**told).write(Path(folder), license=license)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a pickle or a copy, with the looks of the training images instead of the images."""
        return vars(self) | {"parts": replace(self._with_looks(), training_images=tuple)}

    def _with_looks(self) -> Parts:
        """Return the parts with the looks of the training images, by which the model recognises them."""
        return self.parts.with_reference(looks=torch.from_numpy(self._training_looks))

    def to_program(self) -> ExportedProgram:
        """Return network and uncertainty as a `torch.export` program; input and outputs as for `to_onnx`."""
        return exported(Graph(self.predictor, self._example()))

    def to_onnx(self, path: str | Path) -> Path:
        """Write network and uncertainty as an ONNX file.

        Its `input` is the result of `preprocess`: float32 (B, C, S, S), normalised. The file's metadata `preprocessing`
        tells how to make it from an image (see `export`). The outputs are `mean` (B, M), `uncertainty` (B,) and, if the
        uncertainty has one, `concentration` (B,).

        Raises:
            ServingError: ONNX is not installed, or the uncertainty cannot be exported.
        """
        return write_onnx(Graph(self.predictor, self._example()), Path(path), self.eye)

    def _example(self) -> torch.Tensor:
        """Return the network input (2, ...) of two blank images."""
        channels, side = self.eye.shape
        if self.eye.tensor:
            return torch.zeros(2, *self.eye.tensor)
        blank = np.zeros((side, side) if channels == 1 else (side, side, 3), np.uint8)
        return self.preprocess([blank, blank])


def load(source: str | Path, *, device: str = "auto", network: nn.Module | None = None) -> Model:
    """Return a trained model, ready for images.

    Args:
        source: a model folder (`probmetric export`), a finished run (its name, in the project's folder, or the path of
            its folder, from anywhere), or `models:/<name>/<version>` on the MLflow server of `MLFLOW_TRACKING_URI`.
        device: "auto" (CUDA if available), "cpu", "cuda" or "cuda:1".
        network: for a model that `fit` made from your own network: that network, built as for `fit`; it takes the
            model's weights.

    Raises:
        ServingError: there is no such model, or components or a network of your own are missing.
        FileError: a file is missing, damaged or was changed.
    """
    parts = parts_of(source)
    model = Model(parts, combined(_members(parts, network)), pick_device(device))
    stored = model.parts.tensors[REFERENCE].get("canary")
    if stored is not None:
        warn_if_moved(stored.numpy(), model.checked_canary, f"the model folder {source}")
    return model


def _members(parts: Parts, network: nn.Module | None) -> list[Assembly]:
    """Build encoder and loss of every member, with the user's own `network` where the backbone is none of ours.

    Raises:
        FileError: the tensors do not fit the record.
        ServingError: the network is missing, or none is needed.
    """
    record, members = parts.record, []
    for number, member in enumerate(record.members):
        name = MEMBER.format(number)
        misfit = f"{name} of {record.name} does not fit its record; {BROKEN}."
        weights = cast("dict[str, torch.Tensor]", parts.tensors[name])
        check_sizes(member.facts.num_classes, weights, misfit)
        try:
            encoder = _wrapped(record.name, member, network)
            sizes = Sizes.of(member.facts.model_dump())
            members.append(restored(member.settings, sizes, weights, misfit, encoder=encoder))
        except (TypeError, ValueError, ArithmeticError, MemoryError) as error:  # impossible sizes of a network
            raise error if isinstance(error, ProbMetricError) else FileError(f"{misfit} {error}") from error
    return members


def _wrapped(name: str, member: Member, network: nn.Module | None) -> Encoder | None:
    """Return the user's network as an encoder, if the member of the model `name` has one."""
    if member.network is None:
        if network is not None:
            raise ServingError(f"{name} knows its network, {member.settings.backbone.name}; leave out `network`.")
        return None
    if network is None:
        raise ServingError(
            f"{name} was fitted to a network of your own, {member.network.kind}, whose code is not in "
            "the folder. Build it as for `fit` and hand it over: probmetric.load(folder, network=...)."
        )
    return wrapped(network, member.network.width, member.settings.dim if member.network.head else None)


def _surer(reference: np.ndarray, uncertainty: np.ndarray) -> np.ndarray:
    """Return the share (N,) of `reference` (V,), sorted, below each uncertainty (N,); ties count half."""
    sides = [np.searchsorted(reference, uncertainty, side=side) for side in ("left", "right")]
    return np.add(*sides) / (2 * len(reference))


def _reference(parts: Parts) -> np.ndarray | None:
    """Return the uncertainties of the run's validation images, sorted (V,); None without such images."""
    uncertainty, looks, canary = (parts.tensors[REFERENCE].get(name) for name in ("uncertainty", "looks", "canary"))
    sound = (
        uncertainty is not None
        and (uncertainty.ndim, uncertainty.dtype) in ((1, torch.float32), (1, torch.float64))
        and bool(uncertainty.isfinite().all())
        and (looks is None or (looks.ndim, looks.dtype) == (2, torch.float32))
        and (canary is None or sound_canary(canary.float().numpy()))
    )
    if uncertainty is None or not sound:
        raise FileError(f"{REFERENCE} of {parts.record.name} is damaged; {BROKEN}.")
    return np.sort(uncertainty.numpy()) if len(uncertainty) else None


SIDE = 320
WHAT = "explanations of matches"


def explain(model: Model, answers: Sequence[Answer], folder: Path) -> list[Path]:
    """Write a picture `<number>.png` of every answer and its nearest image into `folder`; return their paths.

    Both images are files at the paths that the answer names (`models._regions.draw_match`).

    Raises:
        DataError: an image cannot be read.
        ServingError: the encoder has no feature maps, so no regions.
    """
    encoder = model.predictor.encoder
    shown = [(answer.image, answer.matches[0].path) for answer in answers if answer.matches]
    with new_folder(folder, WHAT) as new:
        for number, pair in enumerate(shown, start=1):
            seen = model.preprocess(list(pair)).to(model.device)
            picture = draw_match(encoder, seen, SIDE)
            if picture is None:
                raise ServingError(
                    f"the encoder of {model.name} has no feature maps, so no regions: leave out --explain."
                )
            picture.save(new / f"{number}.png")
    return [folder / f"{number}.png" for number in range(1, len(shown) + 1)]
