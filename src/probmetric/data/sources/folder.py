"""Your own photographs: a folder with one folder per class, or with such folders in train/, test/ and perhaps val/.

    data.on_request: {shop: {source: folder, raw: photos/}}

    photos/mug/001.jpg  photos/vase/...                  classes, split by the options
    photos/train/mug/001.jpg  photos/test/vase/...       splits as they are (`data.image_folder`); without val/ a part
                                                         of train/ validates
    photos/mug/blue mug/001.jpg                          with `group: folder`, the folder below the class is a group

`split: by_class` trains on some classes and tests on others, for retrieval of things never seen; `by_image` has images
of every class in every split, for classification; `by_group` does too, but keeps the images of a group together.
Images may lie in further folders below their class. Classes with fewer than `min_images` images are left out.

`on_error: skip` leaves out images that cannot be read, and lists them; otherwise all of them are named and nothing is
prepared. Images that look the same (`data.near`) stay in one split only, the latest; the others are listed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from probmetric.data.image_folder import FolderImage, ImageFolder, read_image_folder, readable_name
from probmetric.data.manifest import DataError
from probmetric.data.raw import RawFiles
from probmetric.data.sources import register
from probmetric.data.sources._base import Source, Table
from probmetric.data.sources._files import ImageFiles, Store, strings
from probmetric.data.sources._own import CLOSED_SETS, Listed, OnError, Sharing, Split
from probmetric.registry import Count, CountOrZero, Flag, OpenShare


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
        test_fraction: OpenShare = 0.5,
        val_fraction: OpenShare = 0.15,
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
        folder = self._folder(files)
        files.notes.extend(folder.notes)
        if folder.links_out and self.on_error == "raise":
            shown = ", ".join(folder.links_out[:3])
            raise DataError(
                f"{folder.root}: {len(folder.links_out)} link(s) lead out of the folder, or nowhere ({shown}); copy "
                "the images, or set follow_links: true."
            )
        images = self._usable(folder, files.notes)
        paths, names, splits, groups = (strings(list(column)) for column in zip(*images, strict=True))
        listed = Listed(paths, names, splits if folder.names_splits else None, groups if self.by_folder else None)
        columns = self.sharing.columns(listed, folder.root, files.notes, seed)
        return Table(
            columns,
            ImageFiles(folder.root, columns["path"], "RGB", self.shorter_side, self.store, self.near_duplicates),
            self.sharing.protocol,
            f"images of the folder {folder.root.name}",
            parallel=True,
            on_error=self.on_error,
        )

    def raw_files(self, files: RawFiles) -> tuple[Path, list[str]]:
        """The images."""
        folder = self._folder(files)
        return folder.root, [image.path for image in folder.images if image.class_name]

    def _folder(self, files: RawFiles) -> ImageFolder:
        if files.folder is None or not files.folder.is_dir():
            raise DataError(f"folder: {files.folder or 'no folder'} is no folder; set `raw` to that of your images.")
        return read_image_folder(files.folder, follow_links=self.follow_links)

    def _usable(self, folder: ImageFolder, notes: list[str]) -> list[FolderImage]:
        """Return the images that lie in a class folder; to skip errors, also without names that are no UTF-8."""
        images = [image for image in folder.images if image.class_name]
        loose = len(folder.images) - len(images)
        if not images:
            raise DataError(f"{folder.root} holds no folder with images; one folder per class is expected.")
        if loose:
            notes.append(f"{loose} image(s) left out because they lie in no class folder")
        if self.on_error == "raise":
            return images
        usable = [image for image in images if readable_name(image.path)]
        gone = [*folder.links_out, *(image.path for image in images if not readable_name(image.path))]
        if gone:
            shown = ", ".join(ascii(path) for path in gone[:20])
            notes.append(f"{len(gone)} file(s) left out, links out of the folder or names that are not UTF-8: {shown}")
        if not usable:
            raise DataError(f"{folder.root}: nothing is left without names that are not UTF-8.")
        return usable
