"""Write variants of a prepared dataset: the same images with other labels or splits; pixels are not copied.

Other splits of the classes (`glyphs+split1`) show whether results hold for other training and test classes. The classes
of training, validation and test are drawn again, as many as in the dataset's own split; every class keeps its label.
Folds (`glyphs+fold1`) keep the test classes and validate on other training classes, no class in two folds; a search of
settings is cross-validated over them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.data.manifest import (
    IMAGES,
    MANIFEST,
    SUMMARY,
    OptionError,
    counted,
    read_columns,
    read_digest,
    read_summary,
    verify_digest,
    write_digest,
    write_manifest,
)
from probmetric.data.prepare import PREPARED, repeated, taken
from probmetric.io import write_json
from probmetric.io.folders import new_folder

_OWN = ("noise", "class_split", "splits", "images", "classes")
FIXED = ("role", "true_probability", "clean_label")


def write_variant(
    prepared_folder: Path, output_folder: Path, columns: Mapping[str, np.ndarray], changes: Mapping[str, Any]
) -> None:
    """Write a variant of a prepared dataset; of copies of an image in several splits, that in the last split stays.

    Args:
        prepared_folder: the dataset; its images are used in place.
        output_folder: the folder to write.
        columns: columns of the manifest that differ, or are new.
        changes: entries added to the dataset's metadata and summary.
    """
    stored, metadata = read_columns(prepared_folder)
    every, count = stored | dict(columns), len(stored["label"])
    readable, unseen = np.ones(count, dtype=bool), np.zeros((count, 1), dtype=np.uint8)
    hashed = every | {"sha256": every["sha256"].astype("S64")}
    every = taken([every], repeated(hashed, unseen, readable, metadata.get("protocol", "open_set"))[0])
    home = (prepared_folder / metadata.get("images", ".")).resolve()
    owner = Path(os.path.relpath(home, output_folder.resolve())).as_posix()
    (digest,) = (value for name, value in read_digest(prepared_folder).items() if Path(name).name == IMAGES)
    summary = read_summary(prepared_folder)
    with new_folder(output_folder, PREPARED, [prepared_folder]) as folder:
        write_manifest(folder / MANIFEST, every, {**metadata, **changes, "images": owner})
        write_json(folder / SUMMARY, {**summary, **changes, **counted(every["label"], every["split"])})
        write_digest(folder, digest)


def split_classes(
    prepared_folder: str | Path, output_folder: str | Path, *, number: int, validation_only: bool = False
) -> None:
    """Write a variant of a prepared dataset whose classes are split in another way.

    Args:
        prepared_folder: the dataset.
        output_folder: the folder to write, `data/prepared/<dataset>+split<number>`.
        number: which of the other splits: the seed of the draw, 1 or more.
        validation_only: make fold `number` instead: other validation classes, the same test classes.

    Raises:
        DataError: the dataset is not as it was prepared.
        OptionError: its classes cannot be split in another way.
    """
    prepared_folder, output_folder = Path(prepared_folder), Path(output_folder)
    verify_digest(prepared_folder)
    columns, metadata = read_columns(prepared_folder)
    if metadata.get("protocol") != "open_set":
        raise OptionError(f"{prepared_folder} tests on its training classes; there is no other split of its classes.")
    if metadata.get("pairs") or (fixed := [name for name in FIXED if name in columns]):
        reason = "pairs of test images" if metadata.get("pairs") else f"the column {fixed[0]!r}"
        raise OptionError(f"{prepared_folder}: {reason} would be wrong for other test classes; leave out its splits.")
    divide = fold_split if validation_only else other_split
    split = divide(columns["label"], columns["split"], number)
    write_variant(prepared_folder, output_folder, {"split": split}, {"class_split": number})


def other_split(labels: np.ndarray, split: np.ndarray, number: int) -> np.ndarray:
    """Return the split (N,) of every image: classes drawn with seed `number`, as many in each split as in `split`.

    Args:
        labels: class of every image (N,).
        split: train, val or test (N,), the same for all images of a class.
        number: seed of the draw.
    """
    classes, first, place = np.unique(labels, return_index=True, return_inverse=True)
    of_classes = np.asarray(split)[first]
    drawn = np.random.default_rng([number, len(classes)]).permutation(of_classes)
    return drawn[place]


def fold_split(labels: np.ndarray, split: np.ndarray, number: int) -> np.ndarray:
    """Return the split (N,) of every image for fold `number`: other validation classes, as many as now.

    Raises:
        OptionError: there are fewer folds than `number`.
    """
    classes, first, place = np.unique(labels, return_index=True, return_inverse=True)
    of_classes = np.array(np.asarray(split)[first])
    size, trained = int((of_classes == "val").sum()), np.flatnonzero(of_classes == "train")
    drawn = np.random.default_rng(len(classes)).permutation(trained)[(number - 1) * size : number * size]
    if not size or len(drawn) < size:
        most = 1 + len(trained) // size if size else 1
        raise OptionError(f"fold {number}: the training classes make {most} folds of {size} validation classes.")
    of_classes[of_classes == "val"] = "train"
    of_classes[drawn] = "val"
    return of_classes[place]


def same_images(summary: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Say whether two summaries of prepared datasets differ only in the entries that variants change."""
    plain, of_other = ({k: v for k, v in each.items() if k not in _OWN} for each in (summary, other))
    return plain == of_other
