"""What goes into a gallery: images with a name and a class each, from a folder, a prepared dataset or a sequence."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.errors import ServingError
from probmetric.serving._images import image_files, image_folder, named
from probmetric.serving._sets import Lazy, images_of, is_set, names_of, sequence_of


@dataclass(frozen=True)
class Items:
    """N images with name, class and, where they have one, split."""

    images: Sequence[Any]
    paths: Sequence[str]
    class_names: Sequence[str]
    splits: Sequence[str] = ()


def items_of(images: Any, paths: Sequence[str] | None = None, class_names: Sequence[str] | None = None) -> Items:
    """Images with names and classes; arguments as of `Gallery.add`.

    Raises:
        ServingError: not one name or class per image, or a name twice.
    """
    found = _found(images)
    chosen = Items(found.images, paths or found.paths, class_names or found.class_names)
    for what, names in (("paths", chosen.paths), ("class_names", chosen.class_names)):
        if len(names) != len(chosen.images):
            raise ServingError(f"{len(names)} {what} for {len(chosen.images)} images; give one of each.")
    if len(set(chosen.paths)) < len(chosen.paths):
        seen: set[str] = set()
        twice = next(path for path in chosen.paths if path in seen or seen.add(path))  # type: ignore[func-returns-value]
        raise ServingError(f"{twice!r} is named twice; a gallery knows its images by name.")
    return chosen


def _found(images: Any) -> Items:
    if isinstance(images, str | os.PathLike) and Path(images).is_dir():
        place = Path(images)
        return prepared_items(place) if (place / "manifest.parquet").is_file() else _folder_items([place])
    if is_set(images):
        return Items(images_of(images), [f"image {number}" for number in range(len(images))], names_of(images))
    listed = sequence_of(images)
    folders = [image for image in listed if isinstance(image, str | os.PathLike) and Path(image).is_dir()]
    if folders:
        return _folder_items([Path(image) for image in listed])
    names = [named(image, number) for number, image in enumerate(listed)]
    return Items(listed, names, [""] * len(listed))


def _folder_items(places: Sequence[Path]) -> Items:
    """Files of folders, and files; the class is the folder below the one named, or below that of a split."""
    files: list[Path] = []
    classes: list[str] = []
    for place in places:
        if place.is_dir():
            folder = image_folder(place)
            files += [place / image.path for image in folder.images]
            classes += [text_of(image.class_name) for image in folder.images]
        else:
            files += image_files(place)
            classes.append("")
    return Items(files, [text_of(str(file)) for file in files], classes)


def text_of(name: str) -> str:
    """A name that can be stored: what is no UTF-8 in a file's name is written as an escape."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8") if name.isprintable() is False else name


def prepared_items(folder: Path, splits: Sequence[str] = ()) -> Items:
    """Images of a prepared dataset, those of `splits` or all."""
    from probmetric.data import load_columns, open_images, verify_digest

    verify_digest(folder)
    columns = load_columns(folder, ["path", "class_name", "split"])
    rows = np.flatnonzero(np.isin(columns["split"], list(splits))) if splits else np.arange(len(columns["path"]))
    if not len(rows):
        raise ServingError(f"{folder} has no image in {', '.join(splits)}; its splits are train, val and test.")
    store = open_images(folder)
    images = Lazy(len(rows), lambda number: store[int(rows[number])])
    paths, classes, parts = ([str(columns[name][row]) for row in rows] for name in ("path", "class_name", "split"))
    return Items(images, paths, classes, parts)
