"""Your own photographs: a folder with one folder per class, or with such folders in train/, test/ and perhaps val/.

    data.on_request: {shop: {source: folder, raw: photos/}}

    photos/mug/001.jpg  photos/vase/...                  classes, split by the options
    photos/train/mug/001.jpg  photos/test/vase/...       splits as they are; without val/ a part of train/ validates

`split: by_class` trains on some classes and tests on others, for retrieval of things never seen; `by_image` has images
of every class in every split, for classification. Images may lie in further folders below their class. Classes with
fewer than `min_images` images are left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from probmetric.data.manifest import DataError, OptionError
from probmetric.data.raw import RawFiles
from probmetric.data.sources import register
from probmetric.data.sources._base import Source, Table
from probmetric.data.sources._files import IMAGE_SUFFIXES, ImageFiles, Store, strings
from probmetric.data.splits import hold_out_classes, hold_out_images
from probmetric.registry import Flag

SPLITS = ("train", "val", "test")


@register
class Folder(Source):
    """Class folders of photographs."""

    where = "your own images: `raw` of the dataset names their folder"
    needs_raw = True
    closed_set: ClassVar[Flag] = {"split": "by_image"}
    view: ClassVar[dict[str, Any]] = {"name": "photos"}

    def __init__(
        self,
        *,
        split: Literal["by_class", "by_image"] = "by_class",
        test_fraction: float = 0.5,
        val_fraction: float = 0.15,
        min_images: int = 2,
        shorter_side: int = 256,
        store: Store = "pixels",
    ) -> None:
        for name, value in {"test_fraction": test_fraction, "val_fraction": val_fraction}.items():
            if not 0 < value < 1:
                raise OptionError(f"folder: {name} is {value}; allowed: above 0 and below 1.")
        if min_images < 1:
            raise OptionError(f"folder: min_images is {min_images}; allowed: at least 1.")
        self.by_class, self.test_fraction, self.val_fraction = split == "by_class", test_fraction, val_fraction
        self.min_images, self.shorter_side, self.store = min_images, shorter_side, store

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images by class and file name."""
        if files.folder is None or not files.folder.is_dir():
            raise DataError(f"folder: {files.folder or 'no folder'} is no folder; set `raw` to that of your images.")
        root = files.folder
        given = (root / "train").is_dir() and (root / "test").is_dir()
        found = [row for split in SPLITS for row in _images(root, split)] if given else _images(root)
        splits, names, paths = (strings(list(column)) for column in zip(*found, strict=True))
        keep = self._large_enough(names, files)
        splits, names, paths = splits[keep], names[keep], paths[keep]
        classes, labels = np.unique(names.astype(str), return_inverse=True)
        rng = np.random.default_rng(seed)
        if given:
            self._check_given(root, classes, labels, splits)
        else:
            splits[self._held_out(labels, np.ones(len(labels), dtype=bool), self.test_fraction, rng)] = "test"
        if not np.any(splits == "val"):
            splits[self._held_out(labels, splits == "train", self.val_fraction, rng)] = "val"
        self._check_number(root, labels, splits)
        return Table(
            {"path": paths, "label": labels, "class_name": strings(classes[labels].tolist()), "split": splits},
            ImageFiles(root, paths, "RGB", self.shorter_side, self.store),
            "open_set" if self.by_class else "closed_set",
            f"images of the folder {root.name}",
            parallel=True,
        )

    def _large_enough(self, names: np.ndarray, files: RawFiles) -> np.ndarray:
        """Images (N,) of classes with `min_images` images; the others are noted."""
        classes, which, counts = np.unique(names.astype(str), return_inverse=True, return_counts=True)
        small = [name for name, count in zip(classes, counts, strict=True) if count < self.min_images]
        if small:
            shown = ", ".join(small[:10]) + (" ..." if len(small) > 10 else "")
            files.notes.append(f"{len(small)} class(es) left out, with fewer than {self.min_images} images: {shown}")
        if len(small) == len(classes):
            raise DataError(f"{files.folder}: no class has {self.min_images} images; add images or lower min_images.")
        return np.asarray(counts[which] >= self.min_images)

    def _check_number(self, root: Path, labels: np.ndarray, splits: np.ndarray) -> None:
        if len(np.unique(labels[splits == "train"])) < 2:
            raise DataError(
                f"{root} has {len(np.unique(labels))} class(es): too few to train on two and to validate and test on "
                "others. Add classes, lower test_fraction, or set split: by_image."
            )

    def _check_given(self, root: Path, classes: np.ndarray, labels: np.ndarray, splits: np.ndarray) -> None:
        """Raise `DataError` unless the folders train/ and test/ are split as the option says."""
        train, test = (set(labels[splits == split].tolist()) for split in ("train", "test"))
        wrong = sorted(train & test if self.by_class else test - train)
        if wrong:
            place, other = ("in train/ and in test/", "by_image") if self.by_class else ("in test/ only", "by_class")
            shown = ", ".join(classes[wrong[:3]])
            raise DataError(f"{root}: {len(wrong)} class(es) are {place} ({shown}); move them, or set split: {other}.")

    def _held_out(self, labels: np.ndarray, among: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
        """Mask (N,) of the share of the images `among` (N,) that is held out: whole classes, or images of each."""
        if self.by_class:
            return among & np.isin(labels, hold_out_classes(np.unique(labels[among]), fraction, rng))
        chosen = np.zeros(len(labels), dtype=bool)
        chosen[np.flatnonzero(among)[hold_out_images(labels[among], fraction, rng)]] = True
        return chosen


def _images(root: Path, split: str = "") -> list[tuple[str, str, str]]:
    """(split, class, path below `root`) of every image in the class folders of `root`, or of its folder `split`."""
    found = []
    place = root / split
    for folder, inner, names in os.walk(place) if place.is_dir() else ():
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            parts = Path(folder, name).relative_to(place).parts
            if len(parts) > 1 and Path(name).suffix.lower() in IMAGE_SUFFIXES and not name.startswith("."):
                found.append((split or "train", parts[0], Path(folder, name).relative_to(root).as_posix()))
    if not found and split in ("", "train", "test"):
        raise DataError(
            f"{place} holds no folder with images ({', '.join(IMAGE_SUFFIXES)}); one folder per class is expected."
        )
    return found
