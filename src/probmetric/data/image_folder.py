"""Read folders with pictures: which images there are, and the class and split of each.

    photos/mug/001.jpg  photos/vase/...                  a folder per class; images may lie in further folders below
    photos/train/mug/001.jpg  photos/test/vase/...       folders per split, also `Training Data`, `val_images`,
                                                         `shop_train`, `test2017`, `bounding_box_test`
    photos/mug/train/001.jpg  photos/mug/test/...        folders per split in every class folder

All of it may lie in one more folder: photos/data/mug/001.jpg. Without a test folder, val/ is the test split, as
in ImageNet. query/ and gallery/ (or test/ beside query/) hold test images of two roles. Hidden folders and files
(`.ipynb_checkpoints`, `.git`) and those that servers and archives leave behind (`@eaDir`, `__MACOSX`) are ignored.
Class names that differ only in Unicode form (NFC, NFD) are one class. Pictures of kinds that are not read
(`decode.unread_advice`) and pictures whose name has no ending are listed like the others. Links that lead out of the
folder are listed apart; a folder of such links alone, as DVC, git-annex and datalad make, is read.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from probmetric.data.decode import IMAGE_KINDS, UNREAD_KINDS, is_picture, unread_advice
from probmetric.data.manifest import DataError

PICTURES = (*IMAGE_KINDS, *UNREAD_KINDS)
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "development", "eval", "evaluation"), "val"),
    **dict.fromkeys(("test", "testing", "holdout"), "test"),
    "query": "query",
    "gallery": "gallery",
}
OTHER_WORDS = "set|data|dataset|images?|imgs?|photos?|pictures?|bounding|box|splits?|folders?"
SPLIT_WORD = re.compile(f"(?:{OTHER_WORDS})?({'|'.join(SPLIT_WORDS)})(?:{OTHER_WORDS})?")
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
        unread: what to do about the pictures in class folders that cannot be read, by kind; "" where there are none.
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
    images = _images(root, sorted(paths), notes)
    unread = unread_advice(image.path for image in images if image.class_name)
    return ImageFolder(root, images, sorted(links_out), notes, unread)


def _images(root: Path, paths: list[str], notes: list[str]) -> list[FolderImage]:
    """Return the pictures with class and split, read from the folders above them; splits lie above or below classes.

    Raises:
        DataError: folders of splits lie beside others, or hold no folders of classes.
    """
    inside = {path: unicodedata.normalize("NFC", path).split("/") for path in paths}
    above: list[str] = []
    while len(folders := _folders(inside.values())) == 1:
        depths = [len(parts) for parts in inside.values()]
        if depths.count(2) >= sum(depth > 2 for depth in depths):  # a class
            break
        above += folders
        inside = {path: parts[1:] if len(parts) > 1 else parts for path, parts in inside.items()}
    if above:
        notes.append(f"{'/'.join(above)}/ is the only folder: classes are the folders in it")
    where = root.joinpath(*above)
    splits = _splits(where, folders, notes)
    deep = {parts[0] for parts in inside.values() if len(parts) > 2}
    if flat := sorted(splits.keys() - deep):
        raise DataError(
            f"{where}: folders name splits ({', '.join(splits)}), but the images in {flat[0]}/ lie in no folders of "
            "classes; make one per class, list the images with their classes in a table, or name one folder alone."
        )
    below: dict[str, set[str]] = {name: set() for name in folders}
    for parts in inside.values():
        below.get(parts[0], set()).update(parts[1:2] if len(parts) > 2 else ())
    of_class = {} if splits else {name: _splits(where / name, sorted(below[name]), []) for name in folders}
    inner = any(of_class.values())
    if inner and not all(of_class.values()):
        one, other = (min(name for name in folders if bool(of_class[name]) == named) for named in (True, False))
        raise DataError(
            f"{where}: {one}/ holds folders of splits ({', '.join(of_class[one])}), {other}/ beside it does not; name "
            f"{where / one}, or move {other}/ away."
        )
    images = []
    for path, parts in inside.items():
        split = splits.get(parts[0], "") if len(parts) > 1 else ""
        if split:  # an archive often holds its own name again: test/test/mug/1.jpg
            parts = parts[2 if len(parts) > 3 and parts[1] == parts[0] else 1 :]
        elif inner and len(parts) > 2:
            split = of_class[parts[0]].get(parts[1], "")
            parts = [parts[0], *parts[2:]] if split else parts
        images.append(FolderImage(path, parts[0] if len(parts) > 1 else "", split, "/".join(parts[:2])))
    return images


def _folders(parts: Iterable[Sequence[str]]) -> list[str]:
    return sorted({part[0] for part in parts if len(part) > 1})


def _splits(where: Path, folders: Sequence[str], notes: list[str]) -> dict[str, str]:
    """Return folder -> split; empty where the folders are classes (a class `train` may lie beside other classes).

    Folders are splits where they name two splits and nothing else, or one is train, or they are query and gallery.
    The rest of the name (`shop_` of `shop_train`, `shop_test`) must be the same for all.

    Raises:
        DataError: there are other folders beside the splits, or two folders for one split.
    """
    words: dict[tuple[str, ...], dict[str, str]] = {}
    for name in folders:
        parts = re.findall(r"[^\W\d_]+", name.lower())
        splitting = [(part, match[1]) for part in parts if (match := SPLIT_WORD.fullmatch(part))]
        if len(splitting) == 1:
            rest = tuple(part for part in parts if part != splitting[0][0] and not re.fullmatch(OTHER_WORDS, part))
            words.setdefault(rest, {})[name] = SPLIT_WORDS[splitting[0][1]]
    named = max(words.values(), key=lambda each: len(set(each.values())), default={})
    splits = set(named.values())
    others = [name for name in folders if name not in named]
    if len(splits) < 2 or not ("train" in splits or splits >= {"query", "gallery"} or not others):
        return {}
    if len(splits) < len(named):
        raise DataError(f"{where}: of the folders {', '.join(named)} two name the same split; put them into one.")
    if others:
        raise DataError(
            f"{where}: beside the folders of splits ({', '.join(named)}) there are others with images "
            f"({', '.join(others[:3])}); move them into a split, or out of the folder."
        )
    if "query" in splits and "gallery" not in splits:
        return {name: "gallery" if split == "test" else split for name, split in named.items()}
    if splits == {"train", "val"}:
        (val,) = (name for name, split in named.items() if split == "val")
        notes.append(f"there is no test folder: {val}/ is the test split")
        return {name: "test" if split == "val" else split for name, split in named.items()}
    return named


def _walked(root: Path, follow: bool) -> tuple[list[str], list[str]]:
    """Return paths of the pictures below `root`, and of links that are not followed."""
    real = root.resolve()
    paths: list[str] = []
    links_out: list[str] = []
    waiting: list[tuple[str, tuple[Path, ...]]] = [("", (real,))]
    while waiting:
        below, above = waiting.pop()
        for entry in _entries(root / below):
            path = f"{below}/{entry.name}".removeprefix("/")
            link = Path(entry.path) if entry.is_symlink() else None
            inside = link is None or _inside(link, real)
            is_folder = os.path.isdir(link) if link else entry.is_dir()  # noqa: PTH112 - no error for links in a circle
            if not is_folder:
                if entry.name.lower().endswith(PICTURES) or ("." not in entry.name and is_picture(Path(entry.path))):
                    (paths if inside or follow else links_out).append(path)
            elif link is None:
                waiting.append((path, above))
            elif not (inside or follow):
                links_out.append(path)
            else:
                target, seen = link.resolve(), (*above, link.parent.resolve())
                if not any(place.is_relative_to(target) for place in seen):  # a folder above: would never end
                    waiting.append((path, seen))
    return paths, links_out


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder and not hidden.

    Raises:
        DataError: the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.name.lower() not in LEFT_BEHIND:
                    yield entry
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); make it readable, or move it away.") from error


def _inside(link: Path, root: Path) -> bool:
    """Say whether the target of a link exists and lies below `root`."""
    try:
        return link.resolve(strict=True).is_relative_to(root)
    except (OSError, RuntimeError):  # links in a circle, or to nothing
        return False
