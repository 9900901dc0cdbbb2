"""A trained model: images in, directional distributions out, and answers from a gallery."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from probmetric.data.loose import LooseImages, named, problem_list, reason_of, sequence_of
from probmetric.data.manifest import DataError
from probmetric.errors import ServingError
from probmetric.serving._answers import Answer, Match
from probmetric.serving._trust import chosen, judged

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from probmetric.data.images import Eye
    from probmetric.serving._gallery import Gallery
    from probmetric.serving._parts import Parts
    from probmetric.serving._record import ModelRecord
    from probmetric.trust.certificates import Certificate
    from probmetric.uncertainty import DirectionalBatch, Predictor

UNSURE = "less sure than {:.4g} % of the validation images"
STRANGER = "a stranger: farther from the gallery than its images are from each other"
OnError = Literal["raise", "skip"]


@dataclass(frozen=True)
class Reference:
    """What the run's validation images look like to the model.

    Attributes:
        uncertainty: of each, sorted (V,).
    """

    uncertainty: np.ndarray

    def doubt(self, uncertainty: np.ndarray) -> np.ndarray:
        """Share (N,) of the validation images surer than each of `uncertainty` (N,); ties count half."""
        sides = [np.searchsorted(self.uncertainty, uncertainty, side=side) for side in ("left", "right")]
        return np.add(*sides) / (2 * len(self.uncertainty))


class Embedded(NamedTuple):
    """Embeddings of the images that could be read.

    Attributes:
        batch: their distributions (N, ...).
        kept: their numbers among those asked about (N,).
        problems: (name, reason) of the others.
        looks: what the images look like (N, L), see `_look`.
    """

    batch: DirectionalBatch
    kept: np.ndarray
    problems: list[tuple[str, str]]
    looks: np.ndarray


class Model:
    """A trained encoder with its uncertainty; made by `probmetric.load` or `probmetric.fit`.

    Attributes:
        parts: its record and tensors.
        record: all that is known of it.
        classes: the training classes, in the order of `probabilities`.
        digest: SHA-256 of all that decides its embeddings.
    """

    def __init__(self, parts: Parts, predictor: Predictor, eye: Eye, reference: Reference | None) -> None:
        """Put together what `Parts.bound` built."""
        self.parts, self.predictor, self.eye, self.reference = parts, predictor, eye, reference
        self.record: ModelRecord = parts.record
        self.classes, self.digest = self.record.classes, self.record.digest

    def __repr__(self) -> str:
        channels, side = self.eye.shape
        return (
            f"<Model {self.record.name}: images {channels}x{side}x{side}, uncertainty {self.record.uncertainty.name}>"
        )

    @property
    def card(self) -> str:
        """The model card, in Markdown."""
        from probmetric.serving._card import card

        return card(self.record)

    def embed(self, images: Any, *, samples: bool = False) -> DirectionalBatch:
        """Directional distributions of images, on the CPU.

        Args:
            images: one or a sequence of paths, bytes of files, PIL images, arrays (H, W, C), tensors (C, H, W); or a
                `torch.utils.data.Dataset` of them.
            samples: also draw samples (B, S, M), where the uncertainty has any.

        Raises:
            DataError: images that cannot be read; all of them are named.
        """
        return self.embedded(sequence_of(images, self.eye.ndim), samples=samples).batch

    def embedded(self, images: Sequence[Any], *, on_error: OnError = "raise", samples: bool = False) -> Embedded:
        """As `embed`, and which images were read; with `on_error="skip"` the others are left out."""
        if not len(images):
            raise DataError("there is no image to embed.")
        unreadable: dict[int, DataError] = {}
        seen: list[np.ndarray] = []
        predictor = self._sampling() if samples else self.predictor
        parts = predictor.represent(self._batches(images, unreadable, seen))
        names = {row: named(images[row], row) for row in unreadable}
        problems = [(names[row], reason_of(error, names[row])) for row, error in unreadable.items()]
        kept = np.array([row for row in range(len(images)) if row not in unreadable], dtype=np.int64)
        if problems and (on_error == "raise" or not len(kept)):
            raise problem_list(problems, len(images), "mend or remove them, or leave them out (on_error: skip)")
        return Embedded(predictor.describe(parts), kept, problems, np.concatenate(seen))

    def looks(self, images: Sequence[Any]) -> np.ndarray:
        """What images look like (N, L), see `_look`; those that cannot be read are left out."""
        seen: list[np.ndarray] = []
        for _ in self._batches(images, {}, seen):
            pass
        return np.concatenate(seen) if seen else np.empty((0, 0), dtype=np.float32)

    def _sampling(self) -> Predictor:
        from probmetric.uncertainty import REGISTRY, create_uncertainty

        chosen = self.record.uncertainty
        if "keep_samples" not in REGISTRY.options(chosen.name):
            raise ServingError(f"uncertainty {chosen.name!r} draws no samples; leave out samples=True.")
        return replace(
            self.predictor, uncertainty=create_uncertainty(chosen.name, **chosen.options | {"keep_samples": True})
        )

    def _batches(
        self, images: Sequence[Any], unreadable: dict[int, DataError], seen: list[np.ndarray]
    ) -> Iterator[torch.Tensor]:
        """Yield the encoder's input, batch by batch.

        What the images look like is added to `seen`; what is wrong with others to `unreadable`, by row.
        """
        import torch

        from probmetric.data.images import readable_batches
        from probmetric.serving._look import looks

        device = next(iter(self.predictor.encoder.parameters()), torch.empty(0)).device
        for batch in readable_batches(LooseImages(images, eye=self.eye), self.eye, device, unreadable):
            seen.append(looks(batch))
            yield batch

    def search(
        self,
        gallery: Gallery,
        images: Any,
        *,
        k: int = 5,
        risk: float | None = None,
        withhold: float = 1.0,
        strangers: float = 0.0,
        any_image: bool = False,
    ) -> list[Answer]:
        """The nearest gallery images of each image, and how far the answer can be trusted.

        Args:
            gallery: made by a model of the same digest.
            images: as of `embed`.
            k: matches per image.
            risk: answer only so that at most this share of the answers given is wrong, by a certificate of the gallery
                (`Gallery.certify`).
            withhold: answers are withheld for images less sure than this share of the validation images.
            strangers: answers are withheld for images farther from the gallery than all but this share of its images
                are from each other, such as 0.01.
            any_image: also answer images that do not look like any of the gallery's (`_look`); otherwise answers to
                them are withheld.

        Raises:
            ServingError: the gallery is another model's or empty, or an argument is out of range.
            CertificateError: no certificate for this risk, gallery and model.
            DataError: images that cannot be read; all of them are named.
        """
        asked = sequence_of(images, self.eye.ndim)
        self._check_search(gallery, k, {"withhold": withhold, "strangers": strangers})
        if risk is not None and not 0 < risk < 1:
            raise ServingError(f"risk is {risk:g}; it is the share of wrong answers allowed, between 0 and 1.")
        certificate = None if risk is None else chosen(gallery.certificates, risk, gallery, self)
        embedded = self.embedded(asked)
        batch = embedded.batch
        mean, uncertainty = batch.mean.numpy(), batch.uncertainty.numpy()
        found = gallery.nearest(mean, k)
        known = _Known(uncertainty, None if self.reference is None else self.reference.doubt(uncertainty))
        if certificate is not None or gallery.knows_p_right:
            known.doubts, known.p_right = judged(gallery, mean, uncertainty)
        if strangers:
            known.lonelier = gallery.trust.lonelier(found.similarity[:, 0])
        reasons = [
            _uncertified(certificate, known),
            _where(known.doubt, lambda share: share > withhold, UNSURE.format(100 * withhold)),
            _where(known.lonelier, lambda share: share < strangers, STRANGER),
            [] if any_image else gallery.unlike(embedded.looks),
        ]
        answers = []
        for number, (rows, cosines) in enumerate(zip(found.indices, found.similarity, strict=True)):
            why = [each[number] for each in reasons if each]
            answers.append(known.answer(number, named(asked[number], number), _matches(gallery, rows, cosines), why))
        return answers

    def evaluate(
        self, images: Any, class_names: Sequence[str] | None = None, *, ks: Sequence[int] = (1, 2, 4, 8)
    ) -> dict[str, float]:
        """Metrics of labelled images, each asked among the others; `docs/evaluation.md` defines them.

        Args:
            images: as of `Gallery.add`: a folder with one folder per class, a prepared dataset, or a
                `torch.utils.data.Dataset` of (image, label).
            class_names: their classes (N,), where `images` does not say.
            ks: of recall@k.

        Raises:
            ServingError: images without a class.
            DataError: images that cannot be read; all of them are named.
        """
        from probmetric.serving._measure import measured

        return measured(self, images, class_names, tuple(ks))

    def _check_search(self, gallery: Gallery, k: int, shares: dict[str, float]) -> None:
        if k < 1:
            raise ServingError(f"k is {k}; ask for at least 1 match.")
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ServingError(f"{name} is {share:g}; it is a share of images, 0 to 1.")
        if shares["withhold"] < 1 and self.reference is None:
            raise ServingError("this model has no validation images to compare with; leave out `withhold`.")
        gallery.check_model(self)
        if not len(gallery):
            raise ServingError("the gallery is empty; add images first.")

    def save(self, folder: str | Path, *, license: str = "") -> Path:
        """Write the model folder: self-contained, loadable anywhere, without code of its own.

        A model that `fit` made of a network of your own is loaded with that network: `load(folder, network=...)`.

        Args:
            folder: must not exist, or be a model folder, which is replaced.
            license: under what terms it may be used; goes into the model card.
        """
        return self.parts.write(Path(folder), license=license)

    def to_program(self) -> ExportedProgram:
        """The model as a `torch.export` program, with preprocessing and uncertainty inside; see `to_onnx`."""
        from probmetric.serving._graph import program

        return program(self)

    def to_onnx(self, path: str | Path) -> Path:
        """Write the model as an ONNX file, with preprocessing and uncertainty inside.

        Its `input` is uint8 (B, H, W, C): upright images of one size, any size, RGB, or grey with C = 1; of a model of
        vectors or tensors float32 (B, ...). Its outputs are `mean` (B, M), `uncertainty` (B,) and, where the
        uncertainty has one, `concentration` (B,).

        Raises:
            ServingError: ONNX is not installed, or a view that cannot be exported.
        """
        from probmetric.serving._graph import write_onnx

        return write_onnx(self, Path(path))


@dataclass
class _Known:
    """What is known of the answers to Q queries: arrays (Q,), None where nothing is."""

    uncertainty: np.ndarray
    doubt: np.ndarray | None
    p_right: np.ndarray | None = None
    lonelier: np.ndarray | None = None
    doubts: dict[str, np.ndarray] = field(default_factory=dict)

    def answer(self, number: int, name: str, matches: tuple[Match, ...], reasons: list[str]) -> Answer:
        shares = (self.doubt, self.p_right, self.lonelier)
        doubt, p_right, lonelier = (None if share is None else float(share[number]) for share in shares)
        said = "; ".join(filter(None, reasons))
        return Answer(name, matches, float(self.uncertainty[number]), doubt, p_right, lonelier, bool(said), said)


def _uncertified(certificate: Certificate | None, known: _Known) -> list[str]:
    """Why each answer is withheld by the certificate, "" where it is given."""
    if certificate is None:
        return []
    from probmetric.trust.deployed import certified_doubt

    given = certificate.answers(certified_doubt(certificate, known.doubts))
    reason = f"above the certified doubt: more than {certificate.risk:g} of such answers could be wrong"
    return ["" if answered else reason for answered in given]


def _where(values: np.ndarray | None, withheld: Callable[[float], bool], reason: str) -> list[str]:
    return [] if values is None else [reason if withheld(value) else "" for value in values.tolist()]


def _matches(gallery: Gallery, rows: np.ndarray, cosines: np.ndarray) -> tuple[Match, ...]:
    return tuple(
        Match(gallery.paths[row], gallery.class_names[row], float(cosine))
        for row, cosine in zip(rows, cosines, strict=True)
    )
