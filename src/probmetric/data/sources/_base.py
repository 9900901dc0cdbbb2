"""Define a dataset source: it lists images, labels and splits, and can read an image's pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from probmetric.data.image_file import Stored
from probmetric.data.manifest import DataError
from probmetric.data.raw import RawFile, RawFiles
from probmetric.registry import Flag

Protocol = Literal["open_set", "closed_set"]


@dataclass(frozen=True)
class Table:
    """A dataset before its pixels are stored.

    Attributes:
        columns: name -> array (N,). Required: path, label (0-based and contiguous over all classes),
            class_name, split (train, val or test); any other becomes an extra manifest column.
        image: row -> pixels (H, W, C) uint8, or a `Stored` image; with a method `part`, several processes read.
        protocol: `open_set` (splits disjoint in class) or `closed_set` (splits disjoint in image).
        description: where the images come from, for summary.json.
        notes: decisions taken while reading (images left out and why), listed in summary.json.
        facts: further entries of summary.json.
        pairs: rows of two test images and whether they show the same, for verification in evaluation.
        on_error: for images that cannot be read: `raise` an error that names them all, or `skip` them.
    """

    columns: dict[str, np.ndarray]
    image: Callable[[int], np.ndarray | Stored]
    protocol: Protocol
    description: str
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    pairs: Sequence[tuple[int, int, bool]] = ()
    on_error: Literal["raise", "skip"] = "raise"


class Source(ABC):
    """A dataset that can be prepared.

    Its options are the keyword arguments of its `__init__`: as a rule the fields of a frozen, keyword-only dataclass.

    Attributes:
        files: the archives or files it is published as; empty if it needs none.
        folders: relative paths one of which identifies an extracted copy.
        homes: if another dataset has files of the same names, the subfolders of `data/raw` that are searched.
        where: where people usually get it.
        needs_raw: whether it reads the place that a dataset names as `raw`.
        counts: published numbers: `images`, `classes`, `training` (with validation) and `test` images,
            `training_classes`, `test_classes`.
        closed_set: whether every class is in every split; a mapping if that depends on options.
        view: `name` and options of the view of its images, see `data.views`; if empty, the image sizes decide.
        views: views for the recipes of single papers (`training.augment`), where they differ from `view`.
    """

    files: ClassVar[tuple[RawFile, ...]] = ()
    folders: ClassVar[tuple[str, ...]] = ()
    homes: ClassVar[tuple[str, ...]] = ()
    where: ClassVar[str] = "generated or installed with the package"
    needs_raw: ClassVar[bool] = False
    counts: ClassVar[Mapping[str, int]] = {}
    closed_set: ClassVar[Flag] = False
    view: ClassVar[Mapping[str, Any]] = {}
    views: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def alternatives(cls) -> list[list[str]]:
        """Return sets of raw files, of which one set is needed; none for embedded datasets. `a|b` means a or b."""
        if not cls.files:
            return []
        first = "|".join([cls.files[0].name, *cls.folders])
        named = [first if cls.folders else _plain_too(cls.files[0].name), *(_plain_too(f.name) for f in cls.files[1:])]
        return [named]

    @abstractmethod
    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images, labels and splits.

        Args:
            files: access to what the user supplied.
            seed: seed of the validation split and of generated images.
        """

    def raw_files(self, files: RawFiles) -> tuple[Path, Sequence[str]]:
        """Return the folder of the user's own files and their paths below it; a change starts preparation again.

        None for published archives, which have digests of their own (`data.raw`), and for generated images.
        """
        return Path(), ()


def options(**values: Any) -> dict[str, Any]:
    """Return keyword arguments as a dict: the options of a view, views by name, or published numbers."""
    return values


def _plain_too(name: str) -> str:
    """Return `a|b` for a gzipped file, which may also be there unpacked."""
    return f"{name}|{name.removesuffix('.gz')}" if name.endswith(".gz") else name


def check_counts(files: RawFiles, expected: Mapping[str, int], counts: Mapping[str, int]) -> None:
    """Compare `counts` with the published numbers; with `subset` differences are only noted."""
    wrong = [
        f"{key.replace('_', ' ')} {counts[key]:,} instead of {n:,}" for key, n in expected.items() if counts[key] != n
    ]
    if wrong and not files.subset:
        raise DataError(
            f"{files.name}: {', '.join(wrong)}. The data are incomplete or another version; get them again, or set the "
            "option subset: true to work with what is there."
        )
    if wrong:
        files.notes.append(f"a subset of the published data: {', '.join(wrong)}")
