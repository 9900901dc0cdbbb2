"""What the sources of the user's own data share: how images are split, which are left out, which belong together.

    by_class   some classes train, others validate and test: retrieval of things never seen
    by_image   images of every class in every split: classification
    by_group   as by_image, but the images of a group (the shots of one product) stay together; a class of one group
               trains

Where the data name their splits, these are kept as they are, and `split` says what kind they must be.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from probmetric.data.manifest import SPLITS, DataError
from probmetric.data.sources._files import strings
from probmetric.data.splits import hold_out_classes, hold_out_images

Split = Literal["by_class", "by_image", "by_group"]
OnError = Literal["raise", "skip"]
CLOSED_SETS = ("by_image", "by_group")
LEAST_ASKED = 50  # images: each is two points of recall@1
_PURPOSE = {"val": "choosing epochs and settings by retrieval", "test": "comparing methods by retrieval"}


@dataclass(frozen=True)
class Listed:
    """Images as their owner lists them.

    Attributes:
        paths: name of each (N,).
        names: class of each (N,).
        splits: split of each (N,), or None where they are not named.
        groups: what belongs together (N,), or None.
        extra: further columns (N,).
        where: what they were listed in, for messages.
    """

    paths: np.ndarray
    names: np.ndarray
    splits: np.ndarray | None = None
    groups: np.ndarray | None = None
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    where: Path = Path()

    def kept(self, keep: np.ndarray) -> Listed:
        """Return the images of the mask `keep` (N,)."""
        splits, groups = (None if column is None else column[keep] for column in (self.splits, self.groups))
        extra = {name: column[keep] for name, column in self.extra.items()}
        return Listed(self.paths[keep], self.names[keep], splits, groups, extra, self.where)


@dataclass(frozen=True)
class Sharing:
    """How images are shared out among the splits; `source` is what messages call it."""

    source: str
    split: Split
    test_fraction: float
    val_fraction: float
    min_images: int

    @property
    def protocol(self) -> Literal["open_set", "closed_set"]:
        """Whether splits are disjoint in class or in image."""
        return "open_set" if self.split == "by_class" else "closed_set"

    def columns(self, listed: Listed, where: Path, notes: list[str], seed: int) -> dict[str, np.ndarray]:
        """Manifest columns of the images that stay; `where` is named in messages, what is left out in `notes`.

        Raises:
            DataError: too few classes or images, or splits that contradict `split`.
        """
        listed = replace(listed.kept(self._large_enough(listed.names, where, notes)), where=where)
        classes, labels = np.unique(listed.names.astype(str), return_inverse=True)
        splits = self._splits(listed, classes, labels, where, np.random.default_rng(seed))
        if len(np.unique(labels[splits == "train"])) < 2:
            raise DataError(
                f"{where} has {len(classes)} class(es): too few to train on two and to validate and test on others. "
                "Add classes, lower test_fraction, or set split: by_image."
            )
        if not np.any(splits == "val"):
            raise DataError(
                f"{where} leaves no image to validate on: with test_fraction {self.test_fraction:g} every class keeps "
                "one image to train on. Add images, lower test_fraction, or set split: by_class."
            )
        notes += _too_small(labels, splits)
        columns = {"path": listed.paths, "label": labels, "class_name": strings(classes[labels].tolist())}
        groups = {} if listed.groups is None else {"group": listed.groups}
        return columns | {"split": splits} | groups | listed.extra

    def _large_enough(self, names: np.ndarray, where: Path, notes: list[str]) -> np.ndarray:
        """Images (N,) of classes with `min_images` images; the others are noted."""
        classes, which, counts = np.unique(names.astype(str), return_inverse=True, return_counts=True)
        small = [name for name, count in zip(classes, counts, strict=True) if count < self.min_images]
        if small:
            shown = ", ".join(small[:10]) + (" ..." if len(small) > 10 else "")
            notes.append(f"{len(small)} class(es) left out, with fewer than {self.min_images} images: {shown}")
        if len(small) == len(classes):
            raise DataError(f"{where}: no class has {self.min_images} images; add images or lower min_images.")
        return np.asarray(counts[which] >= self.min_images)

    def _splits(
        self, listed: Listed, classes: np.ndarray, labels: np.ndarray, where: Path, rng: np.random.Generator
    ) -> np.ndarray:
        """Split (N,) of every image."""
        if listed.splits is None:
            splits = strings(["train"] * len(labels))
            splits[self._held_out(listed, labels, splits == "train", self.test_fraction, rng)] = "test"
        else:
            splits = listed.splits.copy()
            self._check_given(classes, labels, splits, where)
        if not np.any(splits == "val"):
            splits[self._held_out(listed, labels, splits == "train", self.val_fraction, rng)] = "val"
        return splits

    def _check_given(self, classes: np.ndarray, labels: np.ndarray, splits: np.ndarray, where: Path) -> None:
        """Raise `DataError` unless the splits the data name are such as the option says."""
        unknown = sorted({str(name) for name in splits} - set(SPLITS))
        if unknown:
            raise DataError(f"{where}: split {unknown[0]!r}; allowed: {', '.join(SPLITS)}.")
        train, test = (set(labels[splits == split].tolist()) for split in ("train", "test"))
        if not train or not test:
            raise DataError(f"{where}: no image is in split {'test' if train else 'train'!r}; name some, or no splits.")
        by_class = self.split == "by_class"
        wrong = sorted(train & test if by_class else test - train)
        if wrong:
            place, other = ("in train/ and in test/", "by_image") if by_class else ("in test/ only", "by_class")
            shown = ", ".join(classes[wrong[:3]])
            raise DataError(f"{where}: {len(wrong)} class(es) are {place} ({shown}); move them, or set split: {other}.")

    def _held_out(
        self,
        listed: Listed,
        labels: np.ndarray,
        among: np.ndarray,
        fraction: float,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Mask (N,) of the share of the images `among` (N,) that is held out: whole classes, images or groups."""
        if self.split == "by_class":
            return among & np.isin(labels, hold_out_classes(np.unique(labels[among]), fraction, rng))
        if self.split == "by_group":
            return self._groups_held_out(listed, labels, among, fraction, rng)
        chosen = np.zeros(len(labels), dtype=bool)
        chosen[np.flatnonzero(among)[hold_out_images(labels[among], fraction, rng)]] = True
        return chosen

    def _groups_held_out(
        self,
        listed: Listed,
        labels: np.ndarray,
        among: np.ndarray,
        fraction: float,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Mask (N,) of whole groups, drawn class by class; a group belongs to the class of its first image."""
        if listed.groups is None:
            raise DataError(
                f"{listed.where} names no groups; say where they are (option group), or set split: by_image."
            )
        rows = np.flatnonzero(among)
        groups, first, which = np.unique(listed.groups[rows].astype(str), return_index=True, return_inverse=True)
        owner = labels[rows][first]
        alone = np.bincount(owner, minlength=labels.max() + 1)[owner] < 2
        held = np.zeros(len(groups), dtype=bool)
        held[~alone] = hold_out_images(owner[~alone], fraction, rng)
        shared = self._classes_left(labels[rows], held[which])
        chosen = np.zeros(len(labels), dtype=bool)
        chosen[rows[held[which] & ~np.isin(which, np.unique(which[shared]))]] = True
        return chosen

    @staticmethod
    def _classes_left(labels: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Held images (N,) of classes of which nothing would stay: groups of several classes can do that."""
        return held & ~np.isin(labels, np.unique(labels[~held]))


def _too_small(labels: np.ndarray, splits: np.ndarray) -> list[str]:
    """What is said of splits in which few images have another one of their class, of labels (N,) and splits (N,)."""
    found = []
    for split, purpose in _PURPOSE.items():
        counts = np.unique(labels[splits == split], return_counts=True)[1]
        asked = int(counts[counts > 1].sum())
        if asked >= LEAST_ASKED:
            continue
        if asked:
            having = f"{asked} of {counts.sum()} images of split {split} have another one of their class there"
            means = f"each is {100 / asked:.0f} % of recall@1, so {purpose} says little"
        else:
            having = f"no image of split {split} has another one of its class there"
            means = f"{purpose} is not possible"
        found.append(f"{having}: {means}; add images, or share them out otherwise")
    return found
