"""Your own photographs: a folder with one folder per class, or with such folders in train/, test/ and perhaps val/.

    data.on_request: {shop: {source: folder, raw: photos/}}

    photos/mug/001.jpg  photos/vase/...                  classes, split by the options
    photos/train/mug/001.jpg  photos/test/vase/...       splits as they are; without val/ a part of train/ validates
    photos/mug/blue mug/001.jpg                          with `group: folder`, the folder below the class is a group

`split: by_class` trains on some classes and tests on others, for retrieval of things never seen; `by_image` has images
of every class in every split, for classification; `by_group` does too, but keeps the images of a group together.
Images may lie in further folders below their class. Classes with fewer than `min_images` images are left out.

`on_error: skip` leaves out images that cannot be read, and lists them; otherwise all of them are named and nothing is
prepared. Images that look the same (`data.near`) stay in one split only, the latest; the others are listed.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Literal

from probmetric.data.manifest import SPLITS, DataError
from probmetric.data.raw import RawFiles
from probmetric.data.sources import register
from probmetric.data.sources._base import Source, Table
from probmetric.data.sources._files import IMAGE_SUFFIXES, ImageFiles, Store, strings
from probmetric.data.sources._own import CLOSED_SETS, Listed, OnError, Sharing, Split
from probmetric.registry import Count, CountOrZero, Flag, Share

OTHER_PICTURES = (".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".jp2", ".ppm")
Rows = list[tuple[str, str, str, str]]


@register
class Folder(Source):
    """Class folders of photographs."""

    where = "your own images: `raw` of the dataset names their folder"
    needs_raw = True
    closed_set: ClassVar[Flag] = {"split": CLOSED_SETS}
    view: ClassVar[dict[str, Any]] = {"name": "photos"}

    def __init__(
        self,
        *,
        split: Split = "by_class",
        test_fraction: Share = 0.5,
        val_fraction: Share = 0.15,
        min_images: Count = 2,
        group: Literal["none", "folder"] = "none",
        shorter_side: CountOrZero = 256,
        store: Store = "pixels",
        on_error: OnError = "raise",
        near_duplicates: bool = True,
        follow_links: bool = False,
    ) -> None:
        self.sharing = Sharing("folder", split, test_fraction, val_fraction, min_images)
        self.by_folder, self.shorter_side, self.store, self.on_error = group == "folder", shorter_side, store, on_error
        self.near_duplicates, self.follow_links = near_duplicates and store == "pixels", follow_links

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images by class and file name."""
        root = _root(files)
        if not self.follow_links and self.on_error == "raise":
            check_links(root)
        given, found = _listed(root)
        files.notes.extend(_other_pictures(root))
        if self.on_error == "skip":
            found = self._usable(root, found, files.notes)
        splits, names, paths, groups = (strings(list(column)) for column in zip(*found, strict=True))
        listed = Listed(paths, names, splits if given else None, groups if self.by_folder else None)
        columns = self.sharing.columns(listed, root, files.notes, seed)
        images = ImageFiles(root, columns["path"], "RGB", self.shorter_side, self.store, self.near_duplicates)
        return Table(
            columns,
            images,
            self.sharing.protocol,
            f"images of the folder {root.name}",
            parallel=True,
            on_error=self.on_error,
        )

    def raw_files(self, files: RawFiles) -> tuple[Path, list[str]]:
        """The images."""
        root = _root(files)
        return root, [row[2] for row in _listed(root)[1]]

    def _usable(self, root: Path, found: Rows, notes: list[str]) -> Rows:
        """Rows without links that lead out of the folder and names that are no UTF-8; the notes list those."""
        real = root.resolve()
        gone = [row for row in found if not (self.follow_links or _stays(root / row[2], real)) or not _text(row[2])]
        if gone:
            shown = ", ".join(ascii(row[2]) for row in gone[:20])
            notes.append(f"{len(gone)} file(s) left out, links out of the folder or names that are not UTF-8: {shown}")
        left = set(gone)
        if len(left) == len(found):
            raise DataError(f"{root}: nothing is left without links out of the folder and names that are not UTF-8.")
        return [row for row in found if row not in left]


def _root(files: RawFiles) -> Path:
    if files.folder is None or not files.folder.is_dir():
        raise DataError(f"folder: {files.folder or 'no folder'} is no folder; set `raw` to that of your images.")
    return files.folder


def _listed(root: Path) -> tuple[bool, Rows]:
    """Whether the folder names its splits, and its images."""
    given = (root / "train").is_dir() and (root / "test").is_dir()
    return given, [row for split in SPLITS for row in _images(root, split)] if given else _images(root)


def _other_pictures(root: Path) -> list[str]:
    """A note on pictures that are left out because nobody expects their kind; nothing where there are none."""
    names = (name for _, _, names in os.walk(root) for name in names if not name.startswith("."))
    kinds = Counter(kind for name in names if (kind := Path(name).suffix.lower()) in OTHER_PICTURES)
    shown = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    allowed = ", ".join(IMAGE_SUFFIXES)
    return [f"{kinds.total()} picture(s) left out because they are no {allowed}: {shown}"] if kinds else []


def _text(name: str) -> bool:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def check_links(root: Path) -> None:
    """Raise `DataError` for files that are links out of the folder: what they lead to may not be meant."""
    real, outside = root.resolve(), []
    for folder, inner, names in os.walk(root):
        linked = [Path(folder, name) for name in (*names, *inner) if Path(folder, name).is_symlink()]
        outside += [path for path in linked if not _stays(path, real)]
    if outside:
        shown = ", ".join(str(path.relative_to(root)) for path in outside[:3])
        raise DataError(
            f"{root}: {len(outside)} link(s) lead out of the folder, or nowhere ({shown}); copy the images, or set "
            "follow_links: true."
        )


def _stays(path: Path, root: Path) -> bool:
    try:
        return path.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):
        return False


def _images(root: Path, split: str = "") -> Rows:
    """(split, class, path below `root`, group) of every image in the class folders of `root`, or of its `split`."""
    found = []
    place = root / split
    for folder, inner, names in os.walk(place) if place.is_dir() else ():
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        parts = Path(folder).relative_to(place).parts
        below = "/".join((split, *parts) if split else parts)
        for name in sorted(names) if parts else ():
            if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith("."):
                found.append((split or "train", parts[0], f"{below}/{name}", "/".join((*parts, name)[:2])))
    if not found and split in ("", "train", "test"):
        raise DataError(
            f"{place} holds no folder with images ({', '.join(IMAGE_SUFFIXES)}); one folder per class is expected."
        )
    return found
