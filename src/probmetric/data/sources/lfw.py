"""Labeled Faces in the Wild, funneled: 13,233 images of 5,749 people.

Splits by identity as in view 1: peopleDevTrain.txt (4,038 people, 9,525 images; 15 % of the people validate) and
peopleDevTest.txt (1,711 people, 3,708 images). Expected in torchvision's layout, `lfw-py/` with `lfw-funneled.tgz` or
`lfw_funneled/<Name>/<Name>_0001.jpg` and the two lists (first line: number of people; then `name<TAB>count`).

The manifest's column `identity` holds the name. Where `pairsDevTest.txt` is there (500 pairs of one person, 500 of two)
its pairs are verified in evaluation (`evaluation.verification`). Training pairs are two random images of one person
(`pairs.PairSampler`); the released code of the Laplacian metric learner pairs every image with the person's first
image only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.sources import RawFile, RawFiles, Table, options, register
from probmetric.data.sources._files import LAM_VIEW, Photographs, existing, strings, validation_classes
from probmetric.data.sources._listing import Row, once, rows
from probmetric.registry import CountOrZero


@register
@dataclass(frozen=True, kw_only=True)
class Lfw(Photographs):
    """Labeled Faces in the Wild."""

    title = "Labeled Faces in the Wild, funneled"
    views = options(lam=LAM_VIEW)
    files = (
        RawFile("lfw-funneled.tgz", "1b42dfed7d15c9b2dd63d5e5840c86ad", "243 MB"),
        RawFile("peopleDevTrain.txt", "54eaac34beb6d042ed3a7d883e247a21"),
        RawFile("peopleDevTest.txt", "e4bf5be0a43b5dcd9dc5ccfcb8fb19c5"),
    )
    pairs_file = RawFile("pairsDevTest.txt", "5132f7440eb68cf58910c8a45a2ac10b")
    folders = ("lfw_funneled",)
    where = "the original site refuses downloads; figshare and Kaggle (lfw-dataset) carry copies"
    counts = options(images=13_233, classes=5_749, training=9_525, test=3_708, training_classes=4_038)

    shorter_side: CountOrZero = 0

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images of both lists."""
        root = files.find(self.folders, self.files[:1]) / "lfw_funneled"
        lists = [_people(files.checked(file)) for file in self.files[1:]]
        people = sorted(name for part in lists for name in part)
        if len(set(people)) != len(people):
            raise DataError("lfw: a person is in both lists, peopleDevTrain.txt and peopleDevTest.txt.")
        images = [(name, i) for part in lists for name, count in part.items() for i in range(1, count + 1)]
        paths = strings([f"{name}/{name}_{i:04d}.jpg" for name, i in images])
        existing(root, paths, files.name)
        names = strings([name for name, _ in images])
        train, test = (np.searchsorted(people, sorted(part)) for part in lists)
        val = validation_classes(train, "standard", 0, seed)
        columns = {
            "file": paths,
            "label": np.searchsorted(people, names.astype(str)),
            "class_name": strings([name.replace("_", " ") for name in names]),
            "identity": names,
        }
        table = self.table(files, root, columns, {"train": train, "val": val, "test": test})
        if not files.files(self.pairs_file.name):
            table.notes.append(f"no {self.pairs_file.name}: no pairs to verify")
            return table
        tested = {image: row for row, image in enumerate(images) if table.columns["split"][row] == "test"}
        return replace(table, pairs=_pairs(files.checked(self.pairs_file), tested))


def _people(path: Path) -> dict[str, int]:
    """Return name -> number of images."""
    head, *listed = rows(path, 2, separator="\t", announced=True)
    if head.whole(0) != len(listed):
        raise head.bad(f"announces {head.whole(0)} people, and {len(listed)} follow")
    once(listed, 0)
    return {row.inside(0): row.whole(1, 1, 10_000) for row in listed}


def _pairs(path: Path, row_of: dict[tuple[str, int], int]) -> list[tuple[int, int, bool]]:
    """Return the pairs to verify: rows of the two images, and whether they show one person.

    The first line holds the number n of pairs of each kind; n lines `name<TAB>i<TAB>j` and n lines
    `name<TAB>i<TAB>other<TAB>j` follow. `row_of` knows the test images by name and number.
    """
    head, *listed = rows(path, 0, separator="\t", announced=True)
    kinds = [len(row.cells) == 4 for row in listed]
    if len(head.cells) != 1 or not len(listed) - sum(kinds) == sum(kinds) == head.whole(0):
        raise DataError(
            f"{path} is no list of pairs of the test people: {len(listed)} pairs, {sum(kinds)} of two people, "
            f"announced {' '.join(head.cells)} of each kind; get it again."
        )
    return [(*_images_of(row, row_of), len(row.cells) == 3) for row in listed]


def _images_of(row: Row, row_of: dict[tuple[str, int], int]) -> tuple[int, int]:
    """Return the rows of the two images a line names."""
    if len(row.cells) not in (3, 4):
        raise row.bad(f"{len(row.cells)} columns, a pair has 3 or 4")
    other = 0 if len(row.cells) == 3 else 2
    both = (row.cells[0], row.whole(1)), (row.cells[other], row.whole(len(row.cells) - 1))
    lacking = next((image for image in both if image not in row_of), None)
    if lacking is not None:
        raise row.bad(f"image {lacking[1]} of {lacking[0]!a} is none of the test people's images")
    return row_of[both[0]], row_of[both[1]]
