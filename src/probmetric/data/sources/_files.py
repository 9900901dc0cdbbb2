"""Read datasets that are image files in folders, choose validation classes, and make the papers' named splits.

Protocols of the open-set datasets with C1 training and C2 test classes:

    standard   first half of the classes trains, second half tests; 15 % of the training classes, drawn with the seed of
               the preparation, validate
    mlrc       the same halves; the training classes in order are cut into 4 equal parts, part `fold` validates
               (Musgrave, Belongie & Lim, "A metric learning reality check", 2020)
    vmf        the same halves; round(15 %) training classes drawn by NumPy's legacy generator with seed 1234 validate
               (released code of the vMF paper: 15 of 98 or 100, 1,698 of 11,318)
    lam        training classes as in the released code of the Laplacian metric learner (CARS196 without the last one),
               15 % of them validate as in `standard`; the paper itself validates on its test classes

Views: `standard` crops 8-100 % of the area to 224 and flips, and evaluates 256 -> central 224; `vmf` crops 16-100 %,
with colour jitter on birds and cars and square resizing on cars and products; `lam` is standard at 227 pixels (the
code; the text says 224), street scenes resized to 224 x 224 without crop or flip.

No `from __future__ import annotations` here: sources in other modules inherit these options with their ranges.
"""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from probmetric.data.decode import as_png, content, damage, decode, decode_file, plain_jpeg_shape
from probmetric.data.image_file import Stored
from probmetric.data.manifest import DataError, text
from probmetric.data.near import mark_of
from probmetric.data.raw import RawFiles
from probmetric.data.sources._base import Source, Table, check_counts, options
from probmetric.data.splits import hold_out_classes
from probmetric.registry import CountOrZero, Range, When

SplitProtocol = Literal["standard", "mlrc", "vmf", "lam"]
Store = Literal["pixels", "files"]
FOLDS = 4
Side = Annotated[CountOrZero, When(store="pixels")]
Fold = Annotated[int, Range(low=0, high=FOLDS - 1)]
VMF_SCALE = (0.16, 1.0)
LAM_VIEW = options(name="photos", size=227, resize=256)


@dataclass(frozen=True)
class ImageFiles:
    """Reader of row -> colour image, from files; picklable, so that several processes can decode.

    Attributes:
        root: folder the paths are relative to.
        paths: file of every row, as text or UTF-8 bytes.
        shorter_side: reduce the shorter side to this; 0 keeps the size.
        store: `pixels`, or `files`: JPEG files as they are (decoded when read; `shorter_side` is not applied).
            Any other file than a plain upright RGB JPEG is stored as a lossless PNG of its pixels.
        marked: also compute each image's mark, so that images that look the same are found (`data.near`).
    """

    root: Path
    paths: np.ndarray
    shorter_side: int = 256
    store: Store = "pixels"
    marked: bool = False

    def __call__(self, row: int) -> Stored:
        """Read image `row`."""
        path = f"{self.root}/{text(self.paths[row])}"  # making a Path takes as long as hashing the file
        if self.store == "files":
            return self._as_file(content(path), path)
        pixels, remarks = decode_file(path, shorter_side=self.shorter_side)
        return Stored(pixels, pixels.shape, remarks, mark_of(pixels) if self.marked else b"")

    def damage(self, most: int) -> list[str]:
        """Check the first and last bytes of `most` evenly spread images; return what is wrong with the damaged ones."""
        looked_at = self.paths[:: -(-len(self.paths) // most)]
        return [problem for path in looked_at if (problem := damage(self.root / text(path)))]

    def part(self, rows: range) -> "ImageFiles":
        """Return the reader of these rows alone."""
        return replace(self, paths=self.paths[rows.start : rows.stop])

    def _as_file(self, data: bytes, path: str) -> Stored:
        shape = plain_jpeg_shape(data)
        if shape is not None:
            return Stored(np.frombuffer(data, dtype=np.uint8), shape)
        pixels, remarks = decode(data, path)
        return Stored(np.frombuffer(as_png(pixels), dtype=np.uint8), pixels.shape, remarks)


@dataclass(frozen=True, kw_only=True)
class Photographs(Source):
    """A published dataset of photographs.

    Attributes:
        title: its name in summary.json.
        shorter_side: see `ImageFiles`.
        store: see `ImageFiles`.
        subset: accept fewer images than were published.
    """

    title: ClassVar[str]
    view = options(name="photos")

    shorter_side: Side = 256
    store: Store = "pixels"
    subset: bool = False

    def images(self, root: Path, paths: np.ndarray) -> ImageFiles:
        """Return the reader of the colour images `paths` (N,) below `root`."""
        return ImageFiles(root, paths, self.shorter_side, self.store)

    def table(
        self, files: RawFiles, root: Path, columns: dict[str, np.ndarray], splits: Mapping[str, np.ndarray]
    ) -> Table:
        """Return the table of the images in `root` whose classes are in a split.

        Args:
            files: the raw files, for messages and notes.
            root: folder of the images.
            columns: `file` below `root`, label, class_name and any others (N,); `path`, where it differs from `file`.
                Labels need not be contiguous.
            splits: labels of `train`, `val` and `test`; a label in several of them goes to the last.

        Raises:
            DataError: the numbers of images and classes are not the published ones.
        """
        label, paths = columns["label"], columns.pop("file")
        trains = ~np.isin(label, splits["test"])
        seen, unseen = (len(np.unique(label[part])) for part in (trains, ~trains))
        counts = {"images": len(label), "training": int(trains.sum()), "test": int((~trains).sum())}
        counts |= {"classes": seen + unseen, "training_classes": seen, "test_classes": unseen}
        check_counts(files, self.counts, counts)
        split = np.full(len(label), "", dtype="<U5")
        for name, classes in splits.items():
            split[np.isin(label, classes)] = name
        used = split != ""
        kept = {name: values[used] for name, values in ({"path": paths} | columns | {"split": split}).items()}
        kept["label"] = np.unique(kept["label"], return_inverse=True)[1]
        return Table(kept, self.images(root, paths[used]), "open_set", self.title)


@dataclass(frozen=True, kw_only=True)
class ZeroShot(Photographs):
    """Photographs of which half the classes train and the others test.

    Attributes:
        protocol: named protocol, see the module docstring.
        fold: for `mlrc`, 0 to 3.
    """

    protocol: SplitProtocol = "standard"
    fold: Annotated[Fold, When(protocol="mlrc")] = 0

    def splits(self, train: np.ndarray, test: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Return the labels of each split, given the ordered training classes (C1,) and the test classes (C2,)."""
        return {"train": train, "val": validation_classes(train, self.protocol, self.fold, seed), "test": test}


def validation_classes(train: np.ndarray, protocol: SplitProtocol, fold: int, seed: int) -> np.ndarray:
    """Return the training classes that validate, by the protocols in the module docstring.

    Args:
        train: training classes in order (C1,).
        protocol: named protocol.
        fold: for `mlrc`, 0 to 3.
        seed: for `standard` and `lam`.
    """
    if protocol == "mlrc":
        return np.array_split(train, FOLDS)[fold]
    if protocol == "vmf":
        count = round(0.15 * len(train))
        return np.sort(train[np.random.RandomState(1234).choice(len(train), count, replace=False)])
    return hold_out_classes(train, 0.15, np.random.default_rng(seed))


def strings(values: list[str]) -> np.ndarray:
    """Make an object array of strings: repeated values share their memory."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def existing(root: Path, paths: np.ndarray, name: str) -> None:
    """Raise `DataError` if files are missing; lists the first."""
    absent = missing_files(root, paths)
    if absent:
        shown = ", ".join(text(paths[row]) for row in absent[:3])
        raise DataError(
            f"{name}: {len(absent):,} of {len(paths):,} images are missing in {root}, e.g. {shown}; "
            "the copy is incomplete, get it again."
        )


def missing_files(root: Path, paths: np.ndarray) -> list[int]:
    """Return the rows of `paths` (N,) that lead to no file below `root`, in the order of their paths."""
    order = np.argsort(paths, kind="stable")
    rows: list[int] = []
    for folder, together in itertools.groupby(order.tolist(), lambda row: text(paths[row]).rpartition("/")[0]):
        inside = names_in(root / folder)
        rows += [row for row in together if text(paths[row]).rpartition("/")[2] not in inside]
    return rows


def names_in(folder: Path) -> set[str]:
    """Return the files of a folder, none if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            # for links in a circle `is_file` of an entry raises an error, `is_file` of a path does not
            return {e.name for e in entries if e.is_file(follow_symlinks=False) or os.path.isfile(e.path)}  # noqa: PTH113
    except OSError:
        return set()
