"""The one reader of folders with pictures: which images there are, of which class, in which split.

    photos/mug/001.jpg  photos/vase/...                  a folder per class; images may lie in further folders below
    photos/train/mug/001.jpg  photos/test/vase/...       folders per split: train, val, test, or training, valid,
                                                         validation, testing, in small or capital letters

Without a test folder, val/ is the test split, as of ImageNet; query/ and gallery/ are test images of two roles. Hidden
folders and files (`.ipynb_checkpoints`, `.git`), and what servers and archives leave behind (`@eaDir`, `__MACOSX`), are
none of the images. A class name in another Unicode form (NFC, NFD) is the same class. Pictures of kinds that are not
read (`decode.unread_advice`) are listed like the others: decoding says what to do. Links that lead out of the folder
are listed apart, unless there is nothing else: folders of links are what DVC, git-annex and datalad make.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from probmetric.data.decode import IMAGE_KINDS, UNREAD_KINDS, unread_advice
from probmetric.data.manifest import DataError

PICTURES = (*IMAGE_KINDS, *UNREAD_KINDS)
SPLIT_FOLDERS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
    "query": "query",
    "gallery": "gallery",
}
LEFT_BEHIND = frozenset(
    ("__macosx", "@eadir", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "lost+found")
)


class FolderImage(NamedTuple):
    """One picture of a folder.

    Attributes:
        path: below the folder, with `/`.
        class_name: the folder below the one read, or below that of its split; "" where it lies in none.
        split: train, val, test, query or gallery; "" where folders name no splits.
        group: the class and the folder below it, or the class and the file's name.
    """

    path: str
    class_name: str
    split: str
    group: str


@dataclass(frozen=True)
class ImageFolder:
    """What a folder holds.

    Attributes:
        root: the folder.
        images: its pictures, by path.
        links_out: paths of links that lead out of it, or nowhere, and are not followed.
        notes: decisions taken while reading.
        unread: what to do about pictures of kinds that are not read; "" where there are none.
    """

    root: Path
    images: list[FolderImage]
    links_out: list[str]
    notes: list[str]
    unread: str

    @property
    def names_splits(self) -> bool:
        """Whether folders name the splits."""
        return any(image.split for image in self.images)


def read_image_folder(place: str | Path, *, follow_links: bool = False) -> ImageFolder:
    """List the pictures in a folder, with the classes and splits that its folders name.

    Args:
        place: the folder.
        follow_links: whether links to files and folders outside it are followed.

    Raises:
        DataError: there is no such folder or no picture in it, or folders of splits and of classes lie side by side.
    """
    root = Path(place)
    if not root.is_dir():
        raise DataError(f"{place} is no folder; name the one that holds your images.")
    paths, links_out = _walked(root, follow_links)
    if links_out and not paths:
        paths, links_out = _walked(root, True)
    if not paths:
        raise DataError(f"{place} holds no images ({', '.join(IMAGE_KINDS)}); one folder per class is expected.")
    notes: list[str] = []
    splits = _split_folders(root, paths, notes)
    images = [_image(path, splits) for path in sorted(paths)]
    return ImageFolder(root, images, sorted(links_out), notes, unread_advice(paths))


def _image(path: str, splits: dict[str, str]) -> FolderImage:
    parts = path.split("/")
    split = splits.get(parts[0], "")
    inside = parts[1:] if split else parts
    inside = [unicodedata.normalize("NFC", part) for part in inside]
    return FolderImage(path, inside[0] if len(inside) > 1 else "", split, "/".join(inside[:2]))


def _split_folders(root: Path, paths: list[str], notes: list[str]) -> dict[str, str]:
    """Return folder below `root` -> split, empty where folders are classes.

    Folders called as splits are splits where one of them is train, another one is not, or they are query and gallery,
    and all hold further folders: a class of trains lies beside other classes, not beside val or test.
    """
    deep = {path.split("/", 1)[0] for path in paths if path.count("/") > 1}
    folders = {path.split("/", 1)[0] for path in paths if "/" in path}
    named = {name: SPLIT_FOLDERS[name.lower()] for name in sorted(folders & deep) if name.lower() in SPLIT_FOLDERS}
    splits = set(named.values())
    if len(splits) < 2 or not ("train" in splits or splits >= {"query", "gallery"}):
        return {}
    if len(splits) < len(named):
        raise DataError(f"{root}: of the folders {', '.join(named)} two name the same split; put them into one.")
    others = sorted(folders - set(named))
    if others:
        raise DataError(
            f"{root}: beside the folders of splits ({', '.join(named)}) there are others with images "
            f"({', '.join(others[:3])}); move them into a split, or out of the folder."
        )
    if not {"test", "query", "gallery"} & set(named.values()):
        (val,) = (name for name, split in named.items() if split == "val")
        notes.append(f"there is no test folder: {val}/ is the test split")
        named[val] = "test"
    return named


def _walked(root: Path, follow: bool) -> tuple[list[str], list[str]]:
    """Return paths of the pictures below `root`, and of links that are not followed."""
    real = root.resolve()
    paths: list[str] = []
    links_out: list[str] = []
    waiting = [""]
    while waiting:
        below = waiting.pop()
        for entry in _entries(root / below):
            path = f"{below}/{entry.name}".removeprefix("/")
            link = entry.is_symlink()
            if _is_folder(entry):
                if not link or _may_enter(Path(entry.path), real, follow):
                    waiting.append(path)
                elif not _inside(Path(entry.path), real):
                    links_out.append(path)
            elif entry.name.lower().endswith(PICTURES):
                (paths if not link or follow or _inside(Path(entry.path), real) else links_out).append(path)
    return paths, links_out


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder and not hidden.

    Raises:
        DataError: the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not _left_out(entry.name))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); make it readable, or move it away.") from error


def _left_out(name: str) -> bool:
    return name.startswith(".") or name.lower() in LEFT_BEHIND


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links in a circle
        return False


def _may_enter(link: Path, root: Path, follow: bool) -> bool:
    """Say whether a link to a folder is followed: not into a folder that holds the link, which would never end."""
    target = link.resolve()
    return (follow or target.is_relative_to(root)) and not link.parent.resolve().is_relative_to(target)


def _inside(link: Path, root: Path) -> bool:
    """Say whether what a link leads to is there and lies below `root`."""
    try:
        return link.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):  # links in a circle, or to nothing
        return False
