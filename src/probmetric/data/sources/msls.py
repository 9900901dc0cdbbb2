"""Mapillary Street-Level Sequences: visual place recognition in 30 cities, about 1.6 million images.

Layout: `{train_val,test}/<city>/{query,database}/` with `postprocessed.csv` (key, easting, northing, night, ...),
`raw.csv` (key, pano, ...), `seq_info.csv` (key, sequence_key, frame_number), `images/<key>.jpg`.
Splits by city: 22 train, cph and sf validate, 6 test (the positions of the test cities are not in the public archive;
where they are missing the test split is left out and noted). `protocol: lam` trains without melbourne, as the released
code of the Laplacian metric learner does.

Left out, and counted: panoramas; with `drop_unmatched`, queries without a database image of their city within the
radius (10 m in train, 25 m else). Extra columns: city, sequence, frame, easting, northing (UTM metres), role, night,
sideways.

The data have no classes. `label` is the cell of a 25 m grid, for losses that need one; retrieval is judged by distance,
see `places.positives`.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.places import RADIUS, TRAIN_RADIUS, matched
from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources import register
from probmetric.data.sources._base import Source, Table
from probmetric.data.sources._files import Photographs, existing, strings

CITIES = {
    "train": [
        "trondheim",
        "london",
        "boston",
        "melbourne",
        "amsterdam",
        "helsinki",
        "tokyo",
        "toronto",
        "saopaulo",
        "moscow",
        "zurich",
        "paris",
        "bangkok",
        "budapest",
        "austin",
        "berlin",
        "ottawa",
        "phoenix",
        "goa",
        "amman",
        "nairobi",
        "manila",
    ],
    "val": ["cph", "sf"],
    "test": ["miami", "athens", "buenosaires", "stockholm", "bengaluru", "kampala"],
}
REACH = {"train": TRAIN_RADIUS, "val": RADIUS, "test": RADIUS}
CELL = 25.0
ROLES = ("query", "database")


@register
class Msls(Source):
    """Mapillary Street-Level Sequences."""

    files = (
        RawFile("metadata.zip", "", "70 MB"),
        *(RawFile(f"images_vol_{i}.zip", "", "about 10 GB") for i in range(1, 7)),
    )
    folders = ("train_val",)
    where = "mapillary.com/dataset/places (after accepting the licence)"

    def __init__(
        self,
        *,
        protocol: Literal["standard", "lam"] = "standard",
        drop_unmatched: bool = True,
        shorter_side: int = 256,
        store: Literal["pixels", "files"] = "pixels",
        subset: bool = False,
    ) -> None:
        self.chosen = Photographs(protocol, 0, shorter_side, store)
        self.drop_unmatched = drop_unmatched

    @classmethod
    def alternatives(cls) -> list[list[str]]:
        """The volumes, or the folder they unpack to."""
        return [[file.name for file in cls.files], ["train_val"]]

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images city by city."""
        root = files.look(self.folders) or _merged(files)
        found = [(split, city) for split, cities in CITIES.items() for city in cities]
        if self.chosen.protocol == "lam":
            found.remove(("train", "melbourne"))
        present = [(split, city) for split, city in found if (root / _part(split) / city).is_dir()]
        absent = [city for split, city in found if (split, city) not in present]
        if absent and not files.subset:
            raise DataError(f"msls: no folder for {', '.join(absent)} in {root}; get all volumes or set subset: true.")
        counts: Counter[str] = Counter()
        parts = [part for split, city in present for part in _city(root, split, city, counts)]
        if not any(len(part["path"]) for part in parts):
            raise DataError(f"msls: no image with a position in {root}; postprocessed.csv needs easting and northing.")
        columns = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
        if self.drop_unmatched:
            keep = _with_positive(columns)
            counts["queries without a database image within the radius"] = int((~keep).sum())
            columns = {name: values[keep] for name, values in columns.items()}
        columns |= _cells(columns)
        paths = columns["path"]
        existing(root, paths, files.name)
        notes = [f"{number:,} left out: {reason}" for reason, number in sorted(counts.items()) if number]
        return Table(
            columns,
            self.chosen.images(root, paths),
            "open_set",
            "Mapillary Street-Level Sequences",
            notes=[*notes, *([f"cities not present: {', '.join(absent)}"] if absent else [])],
            parallel=True,
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
        tree = files.unpack(path, archive)
        for source in sorted(tree.rglob("*")):
            target = merged / source.relative_to(tree)
            if source.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.hardlink_to(source)
    return merged


def _city(root: Path, split: str, city: str, counts: Counter[str]) -> Iterator[dict[str, np.ndarray]]:
    """Columns of the city's queries, then of its database."""
    for role in ROLES:
        folder = root / _part(split) / city / role
        if not (folder / "postprocessed.csv").is_file() and split == "test":
            counts[f"images of {city}, whose positions are not public"] += 1
            continue
        post = _table(folder / "postprocessed.csv", ("key", "easting", "northing"), ("night", "view_direction"))
        raw = _table(folder / "raw.csv", ("key", "pano"))
        panoramas = {key for key, pano in zip(raw["key"], raw["pano"], strict=True) if _true(pano)}
        keep = np.array([key not in panoramas for key in post["key"]], dtype=bool)
        counts["panoramas"] += int((~keep).sum())
        stem = f"{_part(split)}/{city}/{role}/images/"
        columns = {
            "path": strings([f"{stem}{key}.jpg" for key in post["key"]]),
            **{name: strings([value] * len(keep)) for name, value in (("split", split), ("city", city))},
            **_frames(folder, post["key"]),
            "easting": np.array(post["easting"], dtype=np.float64),
            "northing": np.array(post["northing"], dtype=np.float64),
            "role": strings([role] * len(keep)),
            "night": np.array([_true(text) for text in post["night"]], dtype=bool),
            "sideways": np.array([text == "Sideways" for text in post["view_direction"]], dtype=bool),
        }
        yield {name: values[keep] for name, values in columns.items()}


def _frames(folder: Path, keys: list[str]) -> dict[str, np.ndarray]:
    """Sequence and frame number of the images `keys`, "" and -1 where none is known."""
    path = folder / "seq_info.csv"
    if not path.is_file():
        return {"sequence": strings([""] * len(keys)), "frame": np.full(len(keys), -1, dtype=np.int64)}
    listed = _table(path, ("key", "sequence_key", "frame_number"))
    row = {key: i for i, key in enumerate(listed["key"])}
    rows = [row.get(key, -1) for key in keys]
    sequences, frames = ([*listed[name], other] for name, other in (("sequence_key", ""), ("frame_number", "-1")))
    return {
        "sequence": strings([sys.intern(sequences[i]) for i in rows]),
        "frame": np.array([int(frames[i]) for i in rows], dtype=np.int64),
    }


def _table(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, list[str]]:
    """Columns of a CSV file by name, those of `optional` empty where it lacks them."""
    if not path.is_file():
        raise DataError(f"{path} is missing; the metadata of this city are incomplete (metadata.zip holds them).")
    with path.open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        head = next(lines, [])
        lacking = [name for name in needed if name not in head]
        if lacking:
            raise DataError(f"{path} has no column {lacking}; found {head}.")
        there = [(name, head.index(name)) for name in (*needed, *optional) if name in head]
        found: dict[str, list[str]] = {name: [] for name, _ in there}
        for number, line in enumerate(lines, start=2):
            if line and len(line) < len(head):
                raise DataError(f"{path}, line {number}: {len(line)} of {len(head)} columns; the file is truncated.")
            for name, place in there if line else ():
                found[name].append(line[place])
    return found | {name: [""] * len(found[needed[0]]) for name in optional if name not in found}


def _true(text: str) -> bool:
    return text.strip().lower() in ("true", "1", "1.0")


def _with_positive(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Mask (N,) of database images and of queries that have one within the radius of their split."""
    keep = columns["role"] == "database"
    for city in dict.fromkeys(columns["city"].tolist()):
        rows = np.flatnonzero(columns["city"] == city)
        position = np.stack([columns["easting"][rows], columns["northing"][rows]], axis=1)
        query = columns["role"][rows] == "query"
        near = matched(position[query], position[~query], REACH[columns["split"][rows[0]]])
        keep[rows[query]] = near
    return keep


def _cells(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Grid cells as labels and class names; cities come in the order of the splits."""
    cell = np.stack([np.floor(columns[name] / CELL).astype(np.int64) for name in ("easting", "northing")], axis=1)
    order = {city: i for i, city in enumerate(c for cities in CITIES.values() for c in cities)}
    key = np.concatenate([np.array([[order[city]] for city in columns["city"]]), cell], axis=1)
    cells, label = np.unique(key, axis=0, return_inverse=True)
    cities = list(order)
    names = strings([f"{cities[city]} {x} {y}" for city, x, y in cells.tolist()])
    return {"label": label.reshape(-1).astype(np.int64), "class_name": names[label.reshape(-1)]}
