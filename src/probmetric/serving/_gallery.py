"""Galleries: embeddings of images to be searched, stored, grown and shrunk.

Search is exact: see `evaluation.exact`. In a gallery's folder are its files (`_gallery_files`) and what is known of its
answers (`_trust`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.data.loose import loose_images
from probmetric.errors import ServingError
from probmetric.io import FileError, claim_folder, digest_of
from probmetric.serving import _gallery_files, _trust
from probmetric.serving._gallery_files import AGAIN, GALLERY, Content, Part
from probmetric.serving._look import World, some

if TYPE_CHECKING:
    from probmetric.retrieval.neighbours import Neighbours
    from probmetric.serving._model import Model, OnError
    from probmetric.serving._trust import Trust
    from probmetric.trust.certificates import Certificate


class Gallery:
    """Embedded images that can be searched.

    Attributes:
        model: digest of the model that embedded them.
        paths: name of every image (N).
        class_names: class of every image (N), "" where none is known.
        problems: (name, reason) of images that were left out of the latest addition.
        looks: what a sample of its images looks like (n, L); without rows where nobody saw pixels.
    """

    def __init__(self, model: str, dim: int) -> None:
        """An empty gallery of embeddings of `dim` dimensions by the model with the digest `model`."""
        self.model, self.dim = model, dim
        self.paths: list[str] = []
        self.class_names: list[str] = []
        self.problems: list[tuple[str, str]] = []
        self.looks = np.empty((0, 0), dtype=np.float32)
        self.folder: Path | None = None
        self.certificates: list[Certificate] = []
        self._parts: list[Part] = []
        self._trust: Trust | None = None
        self._digest = ""
        self._world: tuple[np.ndarray, World | None] | None = None  # of which looks

    @classmethod
    def create(cls, model: Model, images: Any, *, on_error: OnError = "raise", **names: Sequence[str]) -> Gallery:
        """A gallery of images; arguments as of `add`."""
        gallery = cls(model.digest, 0)
        gallery.add(model, images, on_error=on_error, **names)
        return gallery

    @classmethod
    def open(cls, folder: str | Path) -> Gallery:
        """A stored gallery; its rows stay on disk and are read when they are searched.

        Raises:
            FileError: it is missing, damaged, or holds something that cannot be a gallery.
        """
        folder = Path(folder)
        found = _gallery_files.read(folder)
        gallery = cls(found.model, found.dim)
        gallery.folder, gallery.looks, gallery._parts = folder, found.looks, found.parts
        gallery.paths, gallery.class_names = found.paths, found.class_names
        gallery._trust, gallery.certificates = _trust.read(folder, gallery.digest)
        return gallery

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<Gallery of {len(self)} images, {self.dim} dimensions, model {self.model[:12]}>"

    @property
    def uncertainty(self) -> np.ndarray:
        """Uncertainty of every image (N,)."""
        return np.concatenate([part.uncertainty for part in self._parts]) if self._parts else np.empty(0, np.float32)

    @property
    def digest(self) -> str:
        """SHA-256 of the model, the rows and their names: what a certificate for this gallery is about."""
        if not self._digest:
            names = [part.name for part in self._parts]
            self._digest = digest_of([self.model, names, self.paths, self.class_names])
        return self._digest

    @property
    def record(self) -> dict[str, np.ndarray]:
        """Embeddings `mean` (N, M) and `uncertainty` (N,)."""
        return {"mean": self.rows(), "uncertainty": self.uncertainty}

    @property
    def labelled(self) -> bool:
        """Whether every image has a class."""
        return bool(self.class_names) and "" not in self.class_names

    @property
    def knows_p_right(self) -> bool:
        """Whether P(right) was learnt already, by `trust` or `certify`."""
        return self._trust is not None and self._trust.p_right is not None

    @property
    def trust(self) -> Trust:
        """What the gallery's images, each asked among the others, say of its answers; computed once."""
        if self._trust is None:
            self._trust = _trust.learn(self)
        return self._trust

    def certify(
        self,
        model: Model,
        images: Any = None,
        class_names: Sequence[str] | None = None,
        *,
        risk: float,
        confidence: float = 0.9,
        score: str = "",
    ) -> Certificate:
        """Certify that at most `risk` of the answers given is wrong; kept with the gallery, until that changes.

        Args:
            model: the gallery's model.
            images: labelled images that are not in the gallery, such as will be asked; as of `add`. Without them each
                gallery image is asked among the others: valid for queries from the same source as the gallery's.
            class_names: their classes, by default the names of their folders.
            risk: share of wrong answers allowed among those given.
            confidence: chance that the promise holds.
            score: what decides; by default P(right), and without `images` the disagreement of the nearest.

        Raises:
            CertificateError: no labels, too few images, copies of gallery images; says what is needed.
        """
        found = _trust.certify(self, model, images, class_names, risk=risk, confidence=confidence, score=score)
        self.certificates = [each for each in self.certificates if each.risk != risk] + [found]
        return found

    def _changed(self) -> None:
        """Forget what was known of other rows; certificates stay, and are refused when they are asked for."""
        self._trust, self._digest = None, ""

    def rows(self) -> np.ndarray:
        """All embeddings (N, M), unit rows; of a stored gallery in one file, a map of it."""
        if len(self._parts) == 1:
            return self._parts[0].rows
        return (
            np.concatenate([part.rows for part in self._parts]) if self._parts else np.empty((0, self.dim), np.float32)
        )

    def check_model(self, model: Model) -> None:
        """Raise `ServingError` unless `model` embedded this gallery."""
        if model.digest != self.model:
            raise ServingError(
                f"this gallery was made by another model (digest {self.model[:12]}, {model.record.name} has "
                f"{model.digest[:12]}); make one with this model, or search with that one."
            )

    def add(
        self,
        model: Model,
        images: Any,
        *,
        paths: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        on_error: OnError = "raise",
    ) -> int:
        """Embed images and add them; those whose name is there already are replaced.

        Args:
            model: the gallery's model.
            images: a folder (with one folder per class, or without), a prepared dataset's folder, or what
                `Model.embed` takes; of a `torch.utils.data.Dataset` the images, and its labels as class names.
            paths: names of the images, by default their paths.
            class_names: their classes, by default the names of their folders.
            on_error: "skip" leaves out images that cannot be read and lists them in `problems`.

        Returns:
            How many were added.

        Raises:
            ServingError: another model's gallery, or names that do not fit.
            DataError: images that cannot be read; all of them are named.
        """
        if self.paths or self.dim:
            self.check_model(model)
        items = loose_images(images, paths, class_names)
        found = model.embedded(items.images, on_error=on_error)
        self.problems = found.problems
        kept = found.kept.tolist()
        self.take(
            found.batch.mean.numpy(),
            found.batch.uncertainty.numpy(),
            [items.paths[number] for number in kept],
            [items.class_names[number] for number in kept],
        )
        self._sample(found.looks)
        return len(kept)

    def see(self, model: Model, images: Sequence[Any], count: int = 200) -> None:
        """Look at some of the images that were added by `take`, so that strangers to them are recognised."""
        chosen = np.random.default_rng(0).permutation(len(images))[:count]
        self._sample(model.looks([images[int(row)] for row in np.sort(chosen)]))

    def _sample(self, found: np.ndarray) -> None:
        if not len(self.looks):
            self.looks = some(found)
        elif self.looks.shape[1] == found.shape[1]:
            self.looks = some(np.concatenate([self.looks, found]))

    def unlike(self, looks: np.ndarray) -> list[str]:
        """Why each image with these `looks` (Q, L) is a stranger to the gallery, "" where it is not; [] if unknown."""
        if self._world is None or self._world[0] is not self.looks:
            self._world = self.looks, World.of(self.looks)
        world = self._world[1]
        if world is None or looks.shape[1] != self.looks.shape[1]:
            return []
        return [name and f"a stranger: it looks like no image of the gallery ({name})" for name in world.unlike(looks)]

    def take(self, mean: np.ndarray, uncertainty: np.ndarray, paths: Sequence[str], class_names: Sequence[str]) -> None:
        """Add embeddings (n, M) and uncertainties (n,) that the gallery's model made, under their names."""
        self.remove(set(paths) & set(self.paths))
        self.dim = mean.shape[1]
        self._parts.append(Part(mean.astype(np.float32, copy=False), uncertainty.astype(np.float32, copy=False)))
        self.paths += paths
        self.class_names += class_names
        self._changed()

    def remove(self, paths: Iterable[str]) -> int:
        """Remove images by name; returns how many.

        Raises:
            ServingError: a name that is not there.
        """
        gone = {paths} if isinstance(paths, str) else set(paths)
        absent = sorted(gone - set(self.paths))
        if absent:
            raise ServingError(f"{len(absent)} image(s) are not in the gallery, e.g. {', '.join(absent[:3])}.")
        keep = np.array([path not in gone for path in self.paths], dtype=bool)
        if keep.all():
            return 0
        ends = np.cumsum([0, *(len(part.mean) for part in self._parts)])
        self._parts = [
            kept
            for part, start, end in zip(self._parts, ends, ends[1:], strict=False)
            if len((kept := part.where(keep[start:end])).mean)
        ]
        self.paths = [path for path, stays in zip(self.paths, keep, strict=True) if stays]
        self.class_names = [name for name, stays in zip(self.class_names, keep, strict=True) if stays]
        self._changed()
        return int((~keep).sum())

    def nearest(self, queries: np.ndarray, k: int) -> Neighbours:
        """The k nearest images of each unit query (Q, M); fewer where the gallery is smaller.

        Raises:
            FileError: rows that are not unit vectors: the gallery is damaged.
        """
        from probmetric.retrieval.exact import exact_neighbours

        try:
            return exact_neighbours(queries, [part.rows for part in self._parts], k=min(k, len(self)))
        except ValueError as error:
            raise FileError(f"the gallery {self.folder or ''} is damaged ({error}); {AGAIN}.") from error

    def save(self, folder: str | Path | None = None) -> Path:
        """Store the gallery, by default where it was opened; only new rows are written.

        Raises:
            ServingError: nowhere to store it.
            FileError: it cannot be written, or the folder holds files that are none of a gallery.
        """
        target = Path(folder) if folder is not None else self.folder
        if target is None:
            raise ServingError("say where to store the gallery: save(folder).")
        claim_folder(target, GALLERY)
        content = Content(self.model, self.dim, self._parts, self.paths, self.class_names, self.looks)
        self.folder, self._parts = target, _gallery_files.write(target, content)
        _trust.write(target, self.digest, self._trust, self.certificates)
        return target
