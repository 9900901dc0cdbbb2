"""Split the user's own data: which images train, validate and test, which are left out, which stay together.

    by_class   some classes train, others validate and test: retrieval of things never seen
    by_image   images of every class in every split: classification
    by_group   as by_image, but the images of a group (the shots of one product) stay together; a class with a single
               group is in training only

With `class_order` the last classes in that order test. Each `split_seed` draws other splits.

If the data name their splits, these are kept, and `split` says of which kind they must be. Images of the splits `query`
and `gallery` are test images; the column `role` keeps the name, and evaluation searches the gallery for the queries.
A gallery image of a query's own class and group (Market-1501: the same camera) counts neither as right nor as wrong for
that query. Gallery images of the class `-1` (junk) are left out. Without other images there is no training.

No `from __future__ import annotations` here: sources in other modules inherit these options with their ranges.
"""

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from probmetric.data.image_folder import SPLIT_WORDS
from probmetric.data.manifest import SPLITS, DataError
from probmetric.data.sources._base import Source, Table, options
from probmetric.data.sources._files import ImageFiles, Side, Store, strings
from probmetric.data.sources._listing import rows as listed_rows
from probmetric.data.splits import GALLERY_SPLITS, QUERY_SPLITS, hold_out_classes, hold_out_images
from probmetric.registry import Count, CountOrZero, Flag, OpenShare, When

Split = Literal["by_class", "by_image", "by_group"]
OnError = Literal["raise", "skip"]
CLOSED_SETS = ("by_image", "by_group")
Columns = dict[str, np.ndarray]

ROLES = ("query", "gallery")
JUNK = "-1"
SPLIT_NAMES = SPLIT_WORDS | dict.fromkeys(QUERY_SPLITS, "query") | dict.fromkeys(GALLERY_SPLITS, "gallery")
SEARCHED = "images of the splits query and gallery are test images: queries are asked in the gallery"
SAME_GROUP = "gallery images of a query's class and group are neither right nor wrong for it"
LEAST_ASKED = 50  # images; with fewer, one image is more than two percentage points of recall@1
_PURPOSE = {"val": "choosing epochs and settings", "test": "comparing methods"}


class SplitError(DataError):
    """The splits named by the data are not of the kind of the option `split`, or options ask for other splits too."""


@dataclass(frozen=True, kw_only=True)
class OwnData(Source):
    """Data of the user's own, divided into splits.

    Attributes:
        split: see the module docstring.
        test_fraction: share of the classes, images or groups to test on.
        val_fraction: share of the others to validate on.
        min_images: classes with fewer are left out.
        split_seed: seed of the splits.
        class_order: for `by_class`, "name", or a text file (path relative to the data) that lists the classes: one a
            line, alone or after a number.
    """

    needs_raw: ClassVar[bool] = True
    closed_set: ClassVar[Flag] = {"split": CLOSED_SETS}
    naming_groups: ClassVar[str] = "set group: folder, where the folders below those of the classes are groups"

    split: Split = "by_class"
    test_fraction: OpenShare = 0.5
    val_fraction: OpenShare = 0.15
    min_images: Count = 2
    split_seed: CountOrZero = 0
    class_order: Annotated[str, When(split="by_class")] = ""

    @property
    def protocol(self) -> Literal["open_set", "closed_set"]:
        """Whether splits are disjoint in class or in image."""
        return "open_set" if self.split == "by_class" else "closed_set"

    def columns(self, listed: Columns, where: Path, notes: list[str], seed: int) -> Columns:
        """Return manifest columns of the images that stay.

        Args:
            listed: path and class_name of the images (N,); split and group, where the data name them; any others.
            where: the file or folder that lists them, for messages.
            notes: receives notes about images that are left out.
            seed: seed of the splits.

        Raises:
            DataError: too few classes or images, or splits that contradict `split`.
        """
        listed = _with_roles(listed, where, notes) if "split" in listed else listed
        keep = self._large_enough(listed, where, notes)
        listed = {name: values[keep] for name, values in listed.items()}
        classes, labels = np.unique(listed["class_name"].astype(str), return_inverse=True)
        groups = listed.get("group") if self.split == "by_group" else None
        if self.split == "by_group" and groups is None:
            raise DataError(f"{where} names no groups; {self.naming_groups}, or set split: by_image.")
        rng = np.random.default_rng([seed, self.split_seed] if self.split_seed else seed)
        if "split" in listed:
            splits = listed["split"]
            drawn = np.any(splits == "train") and not np.any(splits == "val")  # images to validate on
            drawing = () if drawn else ("val_fraction", "split_seed")
            for name in ("class_order", "test_fraction", *drawing):
                if getattr(self, name) != getattr(type(self), name):
                    raise SplitError(f"{where} names splits, and {name} would make others; remove one of the two.")
            if np.any(splits != "test") or not _with_a_role(listed).any():
                self._check_splits(classes, labels, splits, where)
                if groups is not None and (parted := parted_groups(listed)):
                    raise SplitError(
                        f"{where}: {len(parted)} group(s) are in several splits ({', '.join(parted[:3])}); move their "
                        "images, or set split: by_image."
                    )
        else:
            splits = strings(["train"] * len(labels))
            if self.class_order:
                splits[self._last_classes(classes, where)[labels]] = "test"
            else:
                splits[self._held_out(labels, groups, splits == "train", self.test_fraction, rng)] = "test"
        if np.any(splits == "train") and not np.any(splits == "val"):
            splits[self._held_out(labels, groups, splits == "train", self.val_fraction, rng)] = "val"
        if np.any(splits != "test"):
            self._check_enough(labels, splits, where, notes)
        notes += _too_small(labels, splits, listed.get("role"))
        return listed | {"label": labels, "class_name": strings(classes[labels].tolist()), "split": splits}

    def _last_classes(self, classes: np.ndarray, where: Path) -> np.ndarray:
        """Return the mask (C,) of the classes to test on: the last ones in `class_order`.

        Raises:
            DataError: the file of `class_order` lacks one of the classes.
        """
        order = classes.tolist()
        if self.class_order != "name":
            folder = where if where.is_dir() else where.parent
            order = _listed_classes(folder / self.class_order, set(order))
        first = len(order) - min(max(round(self.test_fraction * len(order)), 2), len(order) - 1)
        return np.isin(classes, order[first:])

    @property
    def listings(self) -> list[str]:
        """Return the file of `class_order`, if it names one."""
        return [] if self.class_order in ("", "name") else [self.class_order]

    def _check_enough(self, labels: np.ndarray, splits: np.ndarray, where: Path, notes: list[str]) -> None:
        """Raise `DataError` unless there are images of two classes for training, and some for validation."""
        count = len(np.unique(labels))
        if len(np.unique(labels[splits == "train"])) < 2:
            needed = ": too few to train on. Add classes."
            if count > 1 and self.split == "by_class":
                needed = (
                    ": too few to train on two and to validate and test on others. Add classes, lower test_fraction, "
                    "or set split: by_image (`probmetric init --split by_image`)."
                )
            elif count > 1:
                needed = ", but fewer than two have images to train on. Add images, or lower test_fraction."
            left_out = f" ({'; '.join(notes)})" if notes else ""
            raise DataError(f"{where} has {count} class(es){left_out}{needed}")
        if not np.any(splits == "val"):
            raise DataError(
                f"{where} leaves no image to validate on: every class has one image to train on, or none. Add images; "
                f"if the data name no splits, lower test_fraction ({self.test_fraction:g}) or set split: by_class."
            )

    def _large_enough(self, listed: Columns, where: Path, notes: list[str]) -> np.ndarray:
        """Return the mask (N,) of images of classes with `min_images` images, or with images that have a role.

        A note names the others.
        """
        names = listed["class_name"].astype(str)
        classes, which, counts = np.unique(names, return_inverse=True, return_counts=True)
        counts[which[_with_a_role(listed)]] = self.min_images
        small = [name for name, count in zip(classes, counts, strict=True) if count < self.min_images]
        if small:
            shown = ", ".join(small[:10]) + (" ..." if len(small) > 10 else "")
            notes.append(f"{len(small)} class(es) left out, with fewer than {self.min_images} images: {shown}")
        if len(small) == len(classes):
            raise DataError(f"{where}: no class has {self.min_images} images; add images or lower min_images.")
        return np.asarray(counts[which] >= self.min_images)

    def _check_splits(self, classes: np.ndarray, labels: np.ndarray, splits: np.ndarray, where: Path) -> None:
        """Raise `DataError` unless the splits that the data name are of the kind of the option `split`."""
        unknown = sorted({str(name) for name in splits} - set(SPLITS))
        if unknown:
            raise DataError(f"{where}: split {unknown[0]!r}; allowed: {', '.join((*SPLITS, *ROLES))}.")
        train, val, test = (set(labels[splits == split].tolist()) for split in SPLITS)
        if not train or not test:
            raise DataError(f"{where}: no image is in split {'test' if train else 'train'!r}; name some, or no splits.")
        unseen, unlearnt = (train | val) & test, (val | test) - train
        by_class = self.split == "by_class"
        if wrong := sorted(unseen if by_class else unlearnt):
            place = "in test/ and in train/ or val/" if by_class else "in test/ or val/, and not in train/"
            instead = "" if unseen and unlearnt else f", or set split: {'by_image' if by_class else 'by_class'}"
            shown = ", ".join(classes[wrong[:3]])
            raise SplitError(f"{where}: {len(wrong)} class(es) are {place} ({shown}); move them{instead}.")

    def _held_out(
        self,
        labels: np.ndarray,
        groups: np.ndarray | None,
        among: np.ndarray,
        fraction: float,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return the mask (N,) of a share of the images `among` (N,): whole classes, images, or whole `groups` (N,)."""
        if self.split == "by_class":
            return among & np.isin(labels, hold_out_classes(np.unique(labels[among]), fraction, rng))
        chosen = among.copy()
        if groups is None:
            chosen[among] = hold_out_images(labels[among], fraction, rng)
        else:
            chosen[among] = _groups_held_out(groups[among], labels[among], fraction, rng)
        return chosen


@dataclass(frozen=True, kw_only=True)
class OwnImages(OwnData):
    """Image files of the user's own.

    Attributes:
        shorter_side: see `ImageFiles`.
        store: see `ImageFiles`.
        on_error: whether images that cannot be read `raise` an error or are skipped, see `Table`.
        near_duplicates: whether images that look the same stay in one split only; needs `store: pixels`.
    """

    view = options(name="photos")

    shorter_side: Side = 256
    store: Store = "pixels"
    on_error: OnError = "raise"
    near_duplicates: bool = True

    def table(self, root: Path, columns: Columns, description: str) -> Table:
        """Return the table of the images below `root`, with the manifest `columns` (N,)."""
        marked = self.near_duplicates and self.store == "pixels"
        image = ImageFiles(root, columns["path"], self.shorter_side, self.store, marked)
        return Table(columns, image, self.protocol, description, on_error=self.on_error)


@dataclass(frozen=True, kw_only=True)
class InColumns(OwnData):
    """Data whose classes, splits and groups are in columns with these names."""

    naming_groups: ClassVar[str] = "fill the column that the option group_column names"

    path_column: str = "path"
    label_column: str = "label"
    split_column: str = "split"
    group_column: str = "group"

    @property
    def names(self) -> dict[str, str]:
        """Names of the columns of path, label, split and group."""
        return {role: getattr(self, f"{role}_column") for role in ("path", "label", "split", "group")}


def parted_groups(columns: Columns) -> list[str]:
    """Return the named groups whose images are in several splits; empty without a column `group`."""
    if "group" not in columns:
        return []
    pairs = set(zip(columns["group"].astype(str).tolist(), columns["split"].astype(str).tolist(), strict=True))
    splits = Counter(group for group, _ in pairs if group)
    return sorted(group for group, count in splits.items() if count > 1)


def _listed_classes(file: Path, classes: set[str]) -> list[str]:
    """Return `classes` in the order of a file that lists them, one a line, alone or after a number and a separator.

    Raises:
        DataError: the file cannot be read, or lacks a class or has it twice.
    """
    if not file.is_file():
        raise DataError(f"{file} (class_order) cannot be read (no such file); name a text file with a class a line.")
    plain = {" ".join(name.split()): name for name in classes}
    lines = [unicodedata.normalize("NFC", " ".join(row.cells)) for row in listed_rows(file, 0)]
    named = [line if line in plain else re.sub(r"^\d+[,\s]+", "", line) for line in lines]
    listed = [plain[name] for name in named if name in plain]
    if len(listed) != len(classes) or set(listed) != classes:
        wrong = sorted(classes - set(listed)) or [name for name in listed if listed.count(name) > 1]
        raise DataError(
            f"{file}: the class {wrong[0]!a} is listed {listed.count(wrong[0])} times; list every class once."
        )
    return listed


def _with_roles(listed: Columns, where: Path, notes: list[str]) -> Columns:
    """Return columns (N,) in which queries and gallery are test images with a role, without the gallery's junk.

    Raises:
        DataError: queries without a gallery, a gallery without queries, or other test images beside them.
    """
    splits = np.array([SPLIT_NAMES.get(str(name).lower(), str(name)) for name in listed["split"]])
    listed = listed | {"split": strings(splits.tolist())}
    paired = np.isin(splits, ROLES)
    if not paired.any():
        return listed
    there = set(splits.tolist())
    if missing := sorted(set(ROLES) - there):
        raise DataError(f"{where}: no image is in split {missing[0]!r}; queries are asked in a gallery: name both.")
    if "test" in there:
        raise DataError(f"{where}: images are in split 'test' beside query and gallery; name one of these for them.")
    listed = listed | {"split": strings(np.where(paired, "test", splits).tolist())}
    listed["role"] = strings(np.where(paired, splits, "").tolist())
    notes.append(SEARCHED)
    notes += [SAME_GROUP] if "group" in listed else []
    junk = (splits == "gallery") & (listed["class_name"] == JUNK)
    if junk.any():
        notes.append(f"{junk.sum()} image(s) of the gallery left out: their class is {JUNK}, which is junk")
    return {name: values[~junk] for name, values in listed.items()}


def _with_a_role(listed: Columns) -> np.ndarray:
    """Return the mask (N,) of the images that are queries or gallery; the data may have another column `role`."""
    none = np.full(len(listed["class_name"]), "")
    return np.isin(listed.get("role", none).astype(str), (*ROLES, "database"))


def _groups_held_out(groups: np.ndarray, labels: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Return the mask (N,) of whole `groups` (N,), drawn class by class; a group has the class of its first image.

    An image whose group is "" is a group of its own.
    """
    names = np.where(groups == "", [f"\n{row}" for row in range(len(groups))], groups.astype(str))
    _, first, which = np.unique(names, return_index=True, return_inverse=True)
    owner = labels[first]
    alone = np.bincount(owner, minlength=labels.max() + 1)[owner] < 2
    held = np.zeros(len(first), dtype=bool)
    held[~alone] = hold_out_images(owner[~alone], fraction, rng)
    # no class may lose all its images, which groups of several classes could cause
    gone = held[which] & ~np.isin(labels, np.unique(labels[~held[which]]))
    return held[which] & ~np.isin(which, which[gone])


def _too_small(labels: np.ndarray, splits: np.ndarray, role: np.ndarray | None = None) -> list[str]:
    """Return notes about splits in which few images have another of their class; labels, splits and role are (N,)."""
    notes = []
    for split, purpose in _PURPOSE.items() if np.any(splits != "test") else (("test", _PURPOSE["test"]),):
        asking = searched = labels[splits == split]
        if split == "test" and role is not None and np.isin(ROLES, role).all():
            asking, searched = labels[role == "query"], labels[role == "gallery"]
        names, counts = np.unique(searched, return_counts=True)
        queries = int(np.isin(asking, names[counts > 1] if asking is searched else names).sum())
        if queries >= LEAST_ASKED:
            continue
        if queries:
            having = f"split {split} has {queries} images with another one of their class"
            means = f"one of them moves recall@1 by {100 / queries:.0f} points, too much for {purpose}"
        else:
            having = f"no image of split {split} has another one of its class there"
            means = f"{purpose} is not possible"
        notes.append(f"{having}: {means}; add images, or give that split a larger share")
    return notes
