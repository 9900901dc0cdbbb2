"""Your own photographs: a folder with one folder per class, or with such folders in train/, test/ and perhaps val/.

    data.on_request: {shop: {source: folder, raw: photos/}}

    photos/mug/001.jpg  photos/vase/...                  classes, split by the options
    photos/train/mug/001.jpg  photos/test/vase/...       splits as they are (`data.image_folder`); without val/ a part
                                                         of train/ validates
    photos/mug/blue mug/001.jpg                          with `group: folder`, the folder below the class is a group

`split: by_class` trains on some classes and tests on others, for retrieval of things never seen. `by_image` has images
of every class in every split, for classification. `by_group` is like `by_image`, but keeps the images of a group
together. Images may lie in further folders below their class. Classes with fewer than `min_images` images are left out.

`on_error: skip` leaves out and lists images that cannot be read; otherwise preparation stops with an error that names
them all. Images that look the same (`data.near`) stay in the last of their splits only; the others are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from probmetric.data.image_folder import FolderImage, ImageFolder, read_image_folder
from probmetric.data.manifest import DataError, is_utf8
from probmetric.data.sources import RawFiles, Table, register
from probmetric.data.sources._files import strings
from probmetric.data.sources._own import OwnImages


@register
@dataclass(frozen=True, kw_only=True)
class Folder(OwnImages):
    """Class folders of photographs."""

    where = "your own images: `raw` of the dataset names their folder"

    group: Literal["none", "folder"] = "none"
    follow_links: bool = False

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images by class and file name."""
        folder = self._folder(files)
        files.notes.extend(folder.notes)
        if folder.unread and self.on_error == "raise":
            raise DataError(f"{folder.root}: {folder.unread}; or leave them out: on_error: skip.")
        if folder.links_out and self.on_error == "raise":
            shown = ", ".join(folder.links_out[:3])
            raise DataError(
                f"{folder.root}: {len(folder.links_out)} link(s) lead out of the folder, or nowhere ({shown}); copy "
                "the images, or follow links: --follow-links, or follow_links: true in params.yaml."
            )
        images = self._usable(folder, files.notes)
        paths, names, splits, groups = (strings(list(column)) for column in zip(*images, strict=True))
        listed = {"path": paths, "class_name": names}
        listed |= {"split": splits} if folder.names_splits else {}
        listed |= {"group": groups} if self.group == "folder" else {}
        columns = self.columns(listed, folder.root, files.notes, seed)
        return self.table(folder.root, columns, f"images of the folder {folder.root.name}")

    def raw_files(self, files: RawFiles) -> tuple[Path, list[str]]:
        """Return the folder and its images."""
        folder = self._folder(files)
        return folder.root, [*self.listings, *(image.path for image in folder.images if image.class_name)]

    def _folder(self, files: RawFiles) -> ImageFolder:
        return read_image_folder(files.users_folder(), follow_links=self.follow_links)

    def _usable(self, folder: ImageFolder, notes: list[str]) -> list[FolderImage]:
        """Return the images in class folders; with `on_error: skip`, without those whose names are not UTF-8."""
        images = [image for image in folder.images if image.class_name]
        loose = len(folder.images) - len(images)
        if not images:
            tables = [path for path in sorted(folder.root.iterdir()) if path.suffix in (".csv", ".tsv", ".parquet")]
            named = f", or the name of a table: {tables[0]}" if tables else ""
            raise DataError(f"{folder.root} holds no folder with images; one folder per class is expected{named}.")
        if loose:
            notes.append(f"{loose} image(s) left out because they lie in no class folder")
        if self.on_error == "raise":
            return images
        if folder.unread:
            notes.append(f"left out: {folder.unread}")
        usable = [image for image in images if is_utf8(image.path) and Path(image.path).suffix]
        gone = [*folder.links_out, *(image.path for image in images if not is_utf8(image.path))]
        if gone:
            shown = ", ".join(ascii(path) for path in gone[:20])
            notes.append(f"{len(gone)} file(s) left out, links out of the folder or names that are not UTF-8: {shown}")
        if not usable:
            reason = folder.unread or "their names are not UTF-8; rename them"
            raise DataError(f"{folder.root}: on_error: skip leaves out all images: {reason}.")
        return usable
