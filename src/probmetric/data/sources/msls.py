"""Mapillary Street-Level Sequences: visual place recognition in 30 cities, about 1.6 million images.

Layout: `{train_val,test}/<city>/{query,database}/` with `postprocessed.csv` (key, easting, northing, night, ...),
`raw.csv` (key, pano, ...), `seq_info.csv` (key, sequence_key, frame_number), `images/<key>.jpg`.
Splits by city: 22 train, cph and sf validate, 6 test. The public archive lacks the positions of the test cities;
without them the test split is left out and noted. `protocol: lam` trains without melbourne, as the released code of the
Laplacian metric learner does.

Panoramas are left out and counted. With `drop_unmatched`, queries without a database image of their city within the
radius (10 m in train, otherwise 25 m) are too. Extra columns: city, sequence, frame, easting, northing (UTM metres),
role, night, sideways.

The data have no classes. `label` is the cell of a 25 m grid, for losses that need a class. Distance decides whether a
retrieved image is right, see `places.positives`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from probmetric.data.manifest import DataError, stays_inside
from probmetric.data.places import RADIUS, TRAIN_RADIUS, matched
from probmetric.data.sources import RawFile, RawFiles, Table, options, register
from probmetric.data.sources._files import Photographs, existing, strings
from probmetric.data.sources._listing import bad_line, csv_columns, numbers

TRAIN_CITIES = """
trondheim london boston melbourne amsterdam helsinki tokyo toronto saopaulo moscow zurich paris bangkok budapest austin
berlin ottawa phoenix goa amman nairobi manila
"""
CITIES = {
    "train": TRAIN_CITIES.split(),
    "val": ["cph", "sf"],
    "test": ["miami", "athens", "buenosaires", "stockholm", "bengaluru", "kampala"],
}
REACH = {"train": TRAIN_RADIUS, "val": RADIUS, "test": RADIUS}
CELL = 25.0
ROLES = ("query", "database")
POSITION = ("easting", "northing")
FARTHEST = 1e8  # metres
_Columns = dict[str, np.ndarray]


@register
@dataclass(frozen=True, kw_only=True)
class Msls(Photographs):
    """Mapillary Street-Level Sequences."""

    title = "Mapillary Street-Level Sequences"
    view = options(name="photos", resize=0, crop=False, flip=False)
    files = (
        RawFile("metadata.zip", "", "70 MB"),
        *(RawFile(f"images_vol_{i}.zip", "", "about 10 GB") for i in range(1, 7)),
    )
    folders = ("train_val",)
    where = "mapillary.com/dataset/places (after accepting the licence)"

    protocol: Literal["standard", "lam"] = "standard"
    drop_unmatched: bool = True

    @classmethod
    def alternatives(cls) -> list[list[str]]:
        """Return the volumes, or the folder they unpack to."""
        return [[file.name for file in cls.files], ["train_val"]]

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images city by city."""
        root = files.look(self.folders) or _merged(files)
        cities = [(split, city) for split, cities in CITIES.items() for city in cities]
        if self.protocol == "lam":
            cities.remove(("train", "melbourne"))
        present = [(split, city) for split, city in cities if (root / _part(split) / city).is_dir()]
        absent = [city for split, city in cities if (split, city) not in present]
        if absent and not files.subset:
            raise DataError(f"msls: no folder for {', '.join(absent)} in {root}; get all volumes or set subset: true.")
        counts: Counter[str] = Counter()
        parts = [_city(root, split, city, counts, drop_unmatched=self.drop_unmatched) for split, city in present]
        if not any(len(part["path"]) for part in parts if part):
            raise DataError(f"msls: no image with a position in {root}; postprocessed.csv needs easting and northing.")
        columns = _joined([part for part in parts if part])
        paths = columns["path"]
        existing(root, paths, files.name)
        notes = [f"{number:,} left out: {reason}" for reason, number in sorted(counts.items()) if number]
        return Table(
            columns,
            self.images(root, paths),
            "open_set",
            self.title,
            notes=[*notes, *([f"cities not present: {', '.join(absent)}"] if absent else [])],
        )


def _part(split: str) -> str:
    return "test" if split == "test" else "train_val"


def _merged(files: RawFiles) -> Path:
    """Unpack all archives and link their trees into one folder."""
    archives = [(path, archive) for archive in Msls.files for path in files.files(archive.name)]
    if not archives:
        raise files.missing(Msls.folders, Msls.files, [])
    merged = files.work / "msls"
    for path, archive in archives:
        shutil.copytree(files.unpack(path, archive), merged, copy_function=_link, dirs_exist_ok=True)
    return merged


def _link(file: str, target: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.link(file, target)


def _city(root: Path, split: str, city: str, counts: Counter[str], *, drop_unmatched: bool) -> _Columns:
    """Return columns of a city's queries, then of its database, labelled by cells; empty without positions."""
    columns = _joined([part for role in ROLES if (part := _images(root, split, city, role, counts))])
    if not columns:
        return {}
    if drop_unmatched:
        keep = _with_positive(columns, REACH[split])
        counts["queries without a database image within the radius"] += int((~keep).sum())
        columns = {name: values[keep] for name, values in columns.items()}
    return columns | _cells(columns, city)


def _joined(parts: list[_Columns]) -> _Columns:
    """Join the parts and empty them, so that only one column at a time is in memory twice."""
    first = 0
    for part in parts:
        if "label" in part:
            part["label"] += first
            first = part["label"].max(initial=first - 1) + 1
    return {name: np.concatenate([part.pop(name) for part in parts]) for part in parts[:1] for name in list(part)}


def _images(root: Path, split: str, city: str, role: str, counts: Counter[str]) -> _Columns:
    folder = root / _part(split) / city / role
    if not (folder / "postprocessed.csv").is_file() and split == "test":
        counts[f"folders of {city}, whose positions are not public"] += 1
        return {}
    listed = folder / "postprocessed.csv"
    post = _table(listed, ("key", *POSITION), ("night", "view_direction"))
    _check_keys(listed, post)
    raw = _table(folder / "raw.csv", ("key", "pano"))
    keep = ~np.isin(post["key"], raw["key"][_true(raw["pano"])])
    counts["panoramas"] += int((~keep).sum())
    stem = f"{_part(split)}/{city}/{role}/images/"
    columns = {
        "path": _bytes([f"{stem}{key.decode()}.jpg" for key in post["key"].tolist()]),
        **{name: strings([value] * len(keep)) for name, value in (("split", split), ("city", city))},
        **_frames(folder, post["key"]),
        **{name: numbers(listed, post["line"], post[name], np.float64, -FARTHEST, FARTHEST) for name in POSITION},
        "role": strings([role] * len(keep)),
        "night": _true(post["night"]),
        "sideways": post["view_direction"] == b"Sideways",
    }
    return {name: values[keep] for name, values in columns.items()}


def _frames(folder: Path, keys: np.ndarray) -> _Columns:
    """Return sequence and frame number of the images `keys`; "" and -1 where unknown."""
    path = folder / "seq_info.csv"
    if not path.is_file():
        return {"sequence": strings([""] * len(keys)), "frame": np.full(len(keys), -1, dtype=np.int64)}
    listed = _table(path, ("key", "sequence_key", "frame_number"))
    row = {key: i for i, key in enumerate(listed["key"].tolist())}
    rows = np.array([row.get(key, -1) for key in keys.tolist()], dtype=np.int64)
    frames = numbers(path, listed["line"], listed["frame_number"], np.int64, -(2**31), 2**31)
    names, which = np.unique(listed["sequence_key"], return_inverse=True)
    sequences = strings([*(name.decode() for name in names.tolist()), ""])
    return {
        "sequence": sequences[np.append(which, -1)[rows]],
        "frame": np.append(frames, -1)[rows],
    }


def _check_keys(path: Path, table: _Columns) -> None:
    """Refuse a key that is listed twice or is no file name."""
    keys, first = np.unique(table["key"], return_index=True)
    if len(keys) < len(table["key"]):
        again = np.setdiff1d(np.arange(len(table["key"])), first)[0]
        raise bad_line(path, int(table["line"][again]), f"the key {table['key'][again].decode()!a} is listed already")
    for key, row in zip(keys.tolist(), first.tolist(), strict=True):
        if b"/" in key or not stays_inside(key.decode()):
            raise bad_line(path, int(table["line"][row]), f"the key {key.decode()!a} is no file name")


def _table(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> _Columns:
    """Return columns of a CSV file as UTF-8 bytes (missing `optional` ones empty), and line numbers as `line`."""
    if not path.is_file():
        raise DataError(f"{path} is missing; the metadata of this city are incomplete (metadata.zip holds them).")
    lines, cells = csv_columns(path, needed, optional=optional, pack=_bytes)
    return {"line": lines} | dict.fromkeys(optional, np.zeros(len(lines), dtype="S1")) | cells


def _bytes(values: list[str]) -> np.ndarray:
    """Pack text as UTF-8 bytes of equal length; one `str` per entry would take twice the memory."""
    return np.array([value.encode() for value in values], dtype="S")


def _true(values: np.ndarray) -> np.ndarray:
    return np.isin(np.char.lower(np.char.strip(values)), (b"true", b"1", b"1.0"))


def _with_positive(columns: _Columns, radius: float) -> np.ndarray:
    """Return the mask (N,) of a city's database images, and of its queries with a database image within the radius."""
    keep = columns["role"] == "database"
    position = np.stack([columns["easting"], columns["northing"]], axis=1)
    keep[~keep] = matched(position[~keep], position[keep], radius)
    return keep


def _cells(columns: _Columns, city: str) -> _Columns:
    """Return grid cells of a city as labels and class names."""
    cell = np.stack([np.floor(columns[name] / CELL).astype(np.int64) for name in ("easting", "northing")], axis=1)
    cells, label = np.unique(cell, axis=0, return_inverse=True)
    names = strings([f"{city} {x} {y}" for x, y in cells.tolist()])
    return {"label": label.reshape(-1).astype(np.int64), "class_name": names[label.reshape(-1)]}
