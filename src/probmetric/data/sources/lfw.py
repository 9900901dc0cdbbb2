"""Labeled Faces in the Wild, funneled: 13,233 images of 5,749 people.

Splits by identity as in view 1: peopleDevTrain.txt (4,038 people, 9,525 images; 15 % of the people validate) and
peopleDevTest.txt (1,711 people, 3,708 images). Expected in torchvision's layout, `lfw-py/` with `lfw-funneled.tgz` or
`lfw_funneled/<Name>/<Name>_0001.jpg` and the two lists (first line: number of people; then `name<TAB>count`).

`protocol: view2` is the benchmark itself: every image is a test image, and the 6,000 pairs of `pairs.txt` are verified
in their ten folds. It tests a model trained on other data. The images lie in `lfw_funneled/`, or beside `pairs.txt`.
People with a single image are the strangers of identification (`ood/unanswerable/...`). With `training_folds: 5` the
people of the first five folds train (15 % of them validate), and the pairs of the other five are verified. No person is
in two folds.

The manifest's column `identity` holds the name. Where `pairsDevTest.txt` is there (500 pairs of one person, 500 of two)
its pairs are verified in evaluation (`metrics.verification`). Training pairs are two random images of one person
(`samplers`); the released code of the Laplacian metric learner pairs every image only with the person's first image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import numpy as np

from probmetric.data.image_folder import read_image_folder
from probmetric.data.manifest import DataError
from probmetric.data.sources import RawFile, RawFiles, Table, check_counts, options, register
from probmetric.data.sources._files import LAM_VIEW, Photographs, Side, existing, strings, validation_classes
from probmetric.data.sources._listing import Row, once, rows
from probmetric.registry import Range, When


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

    folds_file = RawFile("pairs.txt", "9f1ba174e4e1c508ff7cdf10ac338a7d")

    shorter_side: Side = 0
    protocol: Literal["view1", "view2"] = "view1"
    training_folds: Annotated[int, Range(low=0, high=9), When(protocol="view2")] = 0

    @classmethod
    def alternatives(cls) -> list[list[str]]:
        """Return the files that the protocol needs; view 2 finds the people's folders beside its pairs."""
        return [*super().alternatives(), [cls.folds_file.name]]

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images of both lists, or of all people."""
        if self.protocol == "view2":
            return self._everybody(files, seed)
        return self._people_of_lists(files, seed)

    def _everybody(self, files: RawFiles, seed: int) -> Table:
        """List every image, with the pairs in ten folds; all test, except images of people in `training_folds`."""
        listing = files.checked(self.folds_file)
        lying = files.look(self.folders)
        root = listing.parent if lying is None and not files.files(self.files[0].name) else None
        root = root or files.find(self.folders, self.files[:1]) / self.folders[0]
        images = [image for image in read_image_folder(root).images if image.class_name]
        names, label = np.unique([image.class_name for image in images], return_inverse=True)
        published = {name: self.counts[name] for name in ("images", "classes")}
        check_counts(files, published, {"images": len(images), "classes": len(names)})
        row_of = {f"{image.class_name}/{PurePosixPath(image.path).stem}": row for row, image in enumerate(images)}
        people = strings(names[label].tolist())
        columns = {
            "path": strings([image.path for image in images]),
            "label": label,
            "class_name": strings([name.replace("_", " ") for name in people]),
            "split": strings(["test"] * len(images)),
            "identity": people,
        }
        pairs, folds = _pairs(listing, row_of)
        if self.training_folds >= folds:
            raise DataError(f"lfw: training_folds {self.training_folds} of {folds} in {listing} leave none to verify.")
        if self.training_folds:
            paired = [row for fold in range(self.training_folds) for pair in pairs[fold::folds] for row in pair[:2]]
            pairs = [pair for place, pair in enumerate(pairs) if place % folds >= self.training_folds]
            trained = np.unique(label[paired])
            held = validation_classes(trained, "standard", 0, seed)
            columns["split"][np.isin(label, trained)] = "train"
            columns["split"][np.isin(label, held)] = "val"
            if overlap := {row for pair in pairs for row in pair[:2]} & set(np.flatnonzero(np.isin(label, trained))):
                raise DataError(f"{listing}: image {images[min(overlap)].path} is of a person in several folds.")
        return Table(columns, self.images(root, columns["path"]), "open_set", self.title, pairs=pairs)

    def _people_of_lists(self, files: RawFiles, seed: int) -> Table:
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
        tested = {
            f"{name}/{name}_{number:04d}": row
            for row, (name, number) in enumerate(images)
            if table.columns["split"][row] == "test"
        }
        return replace(table, pairs=_pairs(files.checked(self.pairs_file), tested)[0])


def _people(path: Path) -> dict[str, int]:
    """Return name -> number of images."""
    head, *listed = rows(path, 2, separator="\t", announced=True)
    if head.whole(0) != len(listed):
        raise head.bad(f"announces {head.whole(0)} people, and {len(listed)} follow")
    once(listed, 0)
    return {row.inside(0): row.whole(1, 1, 10_000) for row in listed}


def _pairs(path: Path, row_of: dict[str, int]) -> tuple[list[tuple[int, int, bool]], int]:
    """Return the pairs to verify (rows of the two images, and whether they show one person) and the number of folds.

    The first line holds the number n of pairs of each kind, perhaps after the number of folds; n lines
    `name<TAB>i<TAB>j` and n lines `name<TAB>i<TAB>other<TAB>j` follow for every fold. The returned pairs alternate
    between the folds, as `metrics.verification` expects. `row_of` maps `Name/Name_0001` to the row of a test image.
    """
    head, *listed = rows(path, 0, separator="\t", announced=True)
    folds, count = (1, head.whole(0)) if len(head.cells) == 1 else (head.whole(0, 1), head.whole(1))
    kinds = np.array([len(row.cells) == 4 for row in listed])
    announced = len(head.cells) <= 2 and len(listed) == 2 * folds * count
    if not announced or not np.array_equal(kinds, np.arange(len(listed)) // count % 2 == 1):
        raise DataError(
            f"{path} is no list of pairs of the test people: {len(listed)} pairs, {kinds.sum()} of two people, "
            f"announced {' '.join(head.cells)} of each kind; get it again."
        )
    pairs = [(*_images_of(row, row_of), len(row.cells) == 3) for row in listed]
    return [pairs[place] for place in np.arange(len(pairs)).reshape(folds, -1).T.ravel()], folds


def _images_of(row: Row, row_of: dict[str, int]) -> tuple[int, int]:
    """Return the rows of the two images a line names."""
    if len(row.cells) not in (3, 4):
        raise row.bad(f"{len(row.cells)} columns, a pair has 3 or 4")
    other = 0 if len(row.cells) == 3 else 2
    for name, number in (both := ((row.cells[0], row.whole(1)), (row.cells[other], row.whole(len(row.cells) - 1)))):
        if f"{name}/{name}_{number:04d}" not in row_of:
            raise row.bad(f"image {number} of {name!a} is none of the test people's images")
    first, second = (row_of[f"{name}/{name}_{number:04d}"] for name, number in both)
    if first == second or (other and both[0][0] == both[1][0]):
        raise row.bad("one image twice, or one person in a line of two people")
    return first, second
