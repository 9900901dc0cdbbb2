"""Hold the content of a gallery: embeddings and names of images, which can be added and removed.

An image is recognised by its name, and by the location of its file, however its path is spelled.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probmetric.errors import ServingError
from probmetric.io import digest_of

TRAINED = "trained"
SAME = 1e-5  # largest difference between coordinates of one image that is embedded in two different batches
NUMBERED = re.compile(r"image \d+")  # name of an image without a name


@dataclass(frozen=True)
class Content:
    """What a gallery holds.

    Attributes:
        model: digest of the model that embedded the images; "" where the vectors came without one.
        mean: unit embeddings (N, M).
        uncertainty: of every image (N,), higher = less sure.
        looks: pixel statistics of every image (N, L), see `looks`; NaN where they were not measured.
        paths: name of every image (N).
        class_names: class of every image (N), "" where none is known.
        files: digest of the location of every image's file (N), however its path is spelled; "" for one without a file.
        uses: `TRAINED` for every image that the model was trained on, "" for the others (N).
    """

    model: str
    mean: np.ndarray
    uncertainty: np.ndarray
    looks: np.ndarray
    paths: list[str]
    class_names: list[str]
    files: list[str]
    uses: list[str]

    @classmethod
    def empty(cls, model: str = "") -> Content:
        """Return a content without images."""
        none = np.empty((0, 0), dtype=np.float32)
        return cls(model, none, none.ravel(), none, [], [], [], [])

    def where(self, kept: np.ndarray) -> Content:
        """Return the content of the images that are `kept` (N,)."""
        rows = np.flatnonzero(kept).tolist()
        names = ([values[row] for row in rows] for values in (self.paths, self.class_names, self.files, self.uses))
        return Content(self.model, self.mean[kept], self.uncertainty[kept], self.looks[kept], *names)

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays by name, contiguous."""
        arrays = {"mean": self.mean, "uncertainty": self.uncertainty, "looks": self.looks}
        return {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays.items()}

    def named_apart(self, new: Content) -> Content:
        """Return new images, which the caller did not name, under names that replace no other image.

        A file that is in the gallery already keeps its name. If an image from elsewhere, with another embedding, has
        the name, the new image gets another one: the path of its file, or without a file the next number.
        """
        paths = list(new.paths)
        names = {path: row for row, path in enumerate(self.paths)}
        files = {file: row for row, file in enumerate(self.files) if file}
        taken, number = {*self.paths, *new.paths}, len(self.paths)
        for row, (path, place) in enumerate(zip(new.paths, new.files, strict=True)):
            before = names.get(path)
            if place and _digest(place) in files:
                paths[row] = self.paths[files[_digest(place)]]
            elif before is None or np.abs(self.mean[before] - new.mean[row]).max() <= SAME:
                continue
            elif place:
                paths[row] = place
            elif NUMBERED.fullmatch(path):
                while (name := f"image {number}") in taken:
                    number += 1
                paths[row] = name
                taken.add(name)
        return replace(new, paths=paths)

    def joined(self, new: Content) -> Content:
        """Return the images and new ones, which replace those of the same name or file; of a file twice the last stays.

        Raises:
            ServingError: the number of dimensions differs, or a name occurs twice.
        """
        if self.paths and new.mean.shape[1] != self.mean.shape[1]:
            raise ServingError(f"embeddings of {new.mean.shape[1]} dimensions; the gallery has {self.mean.shape[1]}.")
        new = replace(new, files=[place and _digest(place) for place in new.files])
        last = {file: row for row, file in enumerate(new.files) if file}
        if len(last) < sum(map(bool, new.files)):
            new = new.where(np.array([last.get(file, row) == row for row, file in enumerate(new.files)], dtype=bool))
        names, files = Counter(map(os.path.normpath, new.paths)), set(new.files) - {""}
        if len(names) < len(new.paths):
            twice = names.most_common(1)[0]
            raise ServingError(
                f"{len(new.paths)} images have {len(names)} different names, {twice[0]!r} is the name of {twice[1]}; "
                "give each its own."
            )
        there = zip(self.paths, self.files, strict=True)
        kept = [os.path.normpath(path) not in names and file not in files for path, file in there]
        old = self if all(kept) else self.where(np.array(kept, dtype=bool))
        mean = new.mean.astype(np.float32, copy=False)
        return Content(
            old.model,
            np.concatenate([old.mean, mean]) if len(old.paths) else mean,
            np.concatenate([old.uncertainty, new.uncertainty.astype(np.float32, copy=False)]),
            stacked_looks(old.looks, new.looks),
            [*old.paths, *new.paths],
            [*old.class_names, *new.class_names],
            [*old.files, *new.files],
            [*old.uses, *new.uses],
        )

    def without(self, names: Iterable[str]) -> Content:
        """Return the content without some images, by name or file.

        Raises:
            ServingError: a name is not in the gallery.
        """
        files = {file: path for file, path in zip(self.files, self.paths, strict=True) if file}
        there = set(self.paths)
        gone = {name if name in there else files.get(_digest(place_of(name)), name) for name in names}
        absent = sorted(gone - there)
        if absent:
            raise ServingError(
                f"{len(absent)} image(s) are not in the gallery, e.g. {', '.join(absent[:3])}; name each image as "
                "answers do, no folder."
            )
        return self.where(np.array([path not in gone for path in self.paths], dtype=bool)) if gone else self


def digest_of_content(content: Content) -> str:
    """Return the SHA-256 of model, names, classes and arrays, by which a certificate names its gallery."""
    shapes = [content.mean.shape, content.looks.shape]
    names = digest_of([content.model, *shapes, content.paths, content.class_names, content.uses])
    digest = hashlib.sha256(names.encode())
    for array in content.tensors.values():
        digest.update(array.data)
    return digest.hexdigest()


def place_of(image: Any) -> str:
    """Return the location of an image's file, the same for every spelling of its path; "" for what is no path."""
    return os.path.realpath(image) if isinstance(image, str | os.PathLike) and "\0" not in str(image) else ""


def _digest(place: str) -> str:
    """Return the digest of a location; only this is stored, so that a gallery does not reveal folders of its owner."""
    return hashlib.sha256(os.fsencode(place)).hexdigest()


def stacked_looks(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return looks (n + m, L) of images (n, L) and others (m, L); NaN for missing ones, or those of another length."""
    width = before.shape[1] if len(before) and before.shape[1] else after.shape[1]
    parts = [
        part if part.shape[1] == width else np.full((len(part), width), np.nan, dtype=np.float32)
        for part in (before, after)
    ]
    return np.concatenate(parts).astype(np.float32, copy=False)
