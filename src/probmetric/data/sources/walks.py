"""Place recognition along walks: frames of videos, a folder for every area of a building or town.

    data.on_request: {tower: {source: walks, raw: tower/}}

    tower/floor3/f03_stairs_main_frame_000012.jpg        area, walk and number of the frame
    tower/floor4/000012.jpg                              the area's only walk

An answer is right if it is a frame of the same walk at most `places.FRAMES` frames away. Among validation and test
images every `every`-th frame of a walk is a query (column `role`), and the others are the database. The two neighbours
of a query are left out, because neighbouring frames are nearly one picture. The last areas, in natural order, test;
15 % of the others validate. Losses and statistics use classes: for training images, stretches of 2 FRAMES + 1 frames of
a walk; for the others, the walks.

A frame whose file is also in an earlier walk is left out and noted, because a walk that is stored twice would find its
own copy. Further columns: area, sequence (the walk), frame, role.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from probmetric.data.image_folder import read_image_folder
from probmetric.data.manifest import DataError
from probmetric.data.places import FRAMES
from probmetric.data.sources import RawFiles, Table, options, register
from probmetric.data.sources._files import Photographs, strings, validation_classes
from probmetric.registry import OpenShare, Range

FRAME = re.compile(r"(?P<walk>.*?)[_-]?(?:frame[_-]?)?(?P<number>\d+)\.\w+")


@register
@dataclass(frozen=True, kw_only=True)
class Walks(Photographs):
    """Frames of walks, in folders of areas.

    Attributes:
        test_fraction: share of the areas to test on.
        every: every so many frames of a walk, one is a query.
    """

    title = "frames of walks"
    view = options(name="photos", resize=0, crop=False, flip=False)
    needs_raw = True
    where = "your own frames: `raw` of the dataset names their folder"

    test_fraction: OpenShare = 0.5
    every: Annotated[int, Range(low=4, high=1000)] = 5

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the frames area by area."""
        root, paths = self.raw_files(files)
        frames = [(path, *_walk_and_frame(path)) for path in paths]
        frames.sort(key=lambda frame: (_natural(frame[1]), frame[2], frame[0]))
        notes: list[str] = []
        frames = _once(root, frames, notes)
        listed = strings([path for path, _, _ in frames])
        sequence = strings([walk for _, walk, _ in frames])
        number = np.array([number for _, _, number in frames], dtype=np.int64)
        area = strings([path.rpartition("/")[0] for path in listed])
        split = self._splits(area, root, seed)
        role = np.where(split == "train", "", np.where(number % self.every == 0, "query", "database"))
        between = (split != "train") & np.isin(number % self.every, (1, self.every - 1))
        notes.append(f"{between.sum():,} frames left out that stand beside a query")
        stretch = number // (2 * FRAMES + 1)
        names = [
            f"{walk} {part}" if use == "train" else walk
            for walk, part, use in zip(sequence, stretch.tolist(), split.tolist(), strict=True)
        ]
        columns = {
            "path": listed,
            "class_name": strings(names),
            "split": strings(split.tolist()),
            "area": area,
            "sequence": sequence,
            "frame": number,
            "role": strings(role.tolist()),
        }
        columns = {name: values[~between] for name, values in columns.items()}
        for name in ("val", "test"):
            there = set(columns["role"][columns["split"] == name].tolist())
            if lacking := [kind for kind in ("query", "database") if kind not in there]:
                raise DataError(
                    f"{root}: split {name} has no frame of role {lacking[0]}: frames whose number {self.every} (every) "
                    "divides ask, their neighbours are left out, the others are searched. Number the frames of a walk "
                    "one by one, or change every."
                )
        columns["label"] = np.unique(columns["class_name"].astype(str), return_inverse=True)[1]
        return Table(columns, self.images(root, columns["path"]), "open_set", self.title, notes=notes)

    def raw_files(self, files: RawFiles) -> tuple[Path, list[str]]:
        """Return the folder and its frames."""
        folder = read_image_folder(files.users_folder())
        return folder.root, [image.path for image in folder.images if image.class_name]

    def _splits(self, area: np.ndarray, root: Path, seed: int) -> np.ndarray:
        """Return the split (N,) of every frame, from its area (N,)."""
        areas = sorted(set(area.tolist()), key=_natural)
        tested = round(self.test_fraction * len(areas))
        if not 0 < tested < len(areas) - 1:
            raise DataError(
                f"{root}: {len(areas)} folder(s) of frames are too few to train, validate and test; give every area "
                f"a folder, or change test_fraction ({self.test_fraction:g})."
            )
        train, test = np.arange(len(areas) - tested), np.arange(len(areas) - tested, len(areas))
        which = np.array([areas.index(name) for name in area.tolist()])
        split = np.where(np.isin(which, test), "test", "train")
        split[np.isin(which, validation_classes(train, "standard", 0, seed))] = "val"
        return split


def _walk_and_frame(path: str) -> tuple[str, int]:
    """Return walk (with its area) and number of a frame; frames named by a number alone form one walk in their area.

    Raises:
        DataError: the name has no number, or one beyond 64 bits.
    """
    folder, _, name = path.rpartition("/")
    parts = FRAME.fullmatch(name)
    if parts is None or int(parts["number"]) >= 2**63:
        raise DataError(
            f"walks: {path!a} is no frame of a walk; names end in a number below 2^63, as f03_stairs_frame_000012.jpg."
        )
    return f"{folder}/{parts['walk']}".rstrip("/"), int(parts["number"])


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts floor3 before floor10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _once(root: Path, frames: list[tuple[str, str, int]], notes: list[str]) -> list[tuple[str, str, int]]:
    """Return the frames (path, walk, number) without those whose file is also one of an earlier walk."""
    sizes = Counter((root / path).stat().st_size for path, _, _ in frames)
    owner: dict[bytes, str] = {}
    kept, copies = [], Counter[tuple[str, str]]()
    for path, walk, number in frames:
        if sizes[(root / path).stat().st_size] > 1:
            first = owner.setdefault(hashlib.sha256((root / path).read_bytes()).digest(), walk)
            if first != walk:
                copies[walk, first] += 1
                continue
        kept.append((path, walk, number))
    notes.extend(
        f"{count} frames of {walk} left out that are also frames of {first}" for (walk, first), count in copies.items()
    )
    return kept
