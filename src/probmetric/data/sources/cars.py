"""CARS196: 16,185 photographs of 196 car models; the first 98 classes train (8,054), the other 98 test (8,131).

The original site is gone; three layouts are in circulation and lead to the same manifest:

    cars_annos.mat + car_ims/000001.jpg            (or car_ims.tgz)
    devkit/cars_meta.mat, devkit/cars_train_annos.mat, cars_test_annos_withlabels.mat + cars_train/, cars_test/
    images/<class name>/*.jpg                      (also split into train/ and test/ folders)

To make them agree, classes are ordered by name (upper case first; every run of characters other than letters and digits
is read as one space), as in the papers' code. The images of a class are ordered by the SHA-256 of their file, since the
three layouts number files differently. The order by name differs from the official class numbers only within a make.
Where the official numbers are known, it is checked that both orders give the same halves.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from probmetric.data.image_folder import read_image_folder
from probmetric.data.manifest import DataError, stays_inside
from probmetric.data.sources import RawFile, RawFiles, Table, options, register
from probmetric.data.sources._files import LAM_VIEW, VMF_SCALE, ZeroShot, existing, strings
from probmetric.data.sources._listing import mat_variable

CLASSES, TRAIN = 196, 98
_Listing = list[tuple[str, str, int]]


@register
@dataclass(frozen=True, kw_only=True)
class Cars(ZeroShot):
    """Stanford Cars."""

    title = "CARS196 (Stanford Cars)"
    views = options(
        vmf=options(name="photos", scale=VMF_SCALE, ratio=(1.0, 1.0), square=True, jitter=(0.3, 0.3, 0.3, 0.1)),
        lam=LAM_VIEW,
    )
    files = (
        RawFile("car_ims.tgz", "", "1.9 GB"),
        RawFile("cars_annos.mat", "", "200 KB"),
        RawFile("cars_train.tgz", "", "0.9 GB"),
        RawFile("cars_test.tgz", "", "0.9 GB"),
        RawFile("car_devkit.tgz", "", "330 KB"),
        RawFile("cars_test_annos_withlabels.mat", "", "180 KB"),
    )
    folders = ("car_ims", "cars_annos.mat", "cars_train", "cars196/images", "car_data")
    where = "the original site is gone; copies on Kaggle (stanford-cars-dataset) and in research archives"
    counts = options(images=16_185, classes=196, training=8_054, test=8_131)

    @classmethod
    def alternatives(cls) -> list[list[str]]:
        """Return what each of the three layouts needs."""
        devkit = ["cars_train.tgz|cars_train", "cars_test.tgz|cars_test", "car_devkit.tgz|cars_meta.mat"]
        return [
            ["cars_annos.mat", "car_ims.tgz|car_ims"],
            [*devkit, "cars_test_annos_withlabels.mat"],
            ["cars196/images|car_data"],
        ]

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images from whichever layout is there."""
        root, listing = _from_annotations(files) or _from_devkit(files) or _from_folders(files)
        names = _distinct(root, listing)
        if not files.subset and len(names) != CLASSES:
            raise DataError(f"cars: found {len(names)} class names, expected {CLASSES}; see option subset.")
        paths = strings([path for path, _, _ in listing])
        existing(root, paths, files.name)
        label = np.searchsorted(np.array(names), [class_key(name) for _, name, _ in listing])
        half = TRAIN if len(names) == CLASSES else len(names) // 2
        _check_halves(label, np.array([number for _, _, number in listing]), half)
        digest = np.array([hashlib.sha256((root / path).read_bytes()).hexdigest() for path in paths])
        order = np.lexsort([digest, label])
        paths, label, digest = paths[order], label[order], digest[order]
        columns = {
            "file": paths,
            "path": strings([f"{names[k]}/{d[:16]}.jpg" for k, d in zip(label, digest, strict=True)]),
            "label": label,
            "class_name": strings([names[k] for k in label]),
        }
        train = np.arange(half - 1 if self.protocol == "lam" else half)
        return self.table(files, root, columns, self.splits(train, np.arange(half, len(names)), seed))


def class_key(name: str) -> str:
    """Return a class name with every run of characters other than letters and digits as one space."""
    return re.sub(r"[^A-Za-z0-9]+", " ", name).strip()


def _distinct(root: Path, listing: _Listing) -> list[str]:
    """Return class keys in order; an error if two class names have the same key."""
    name_of: dict[str, str] = {}
    for _, name, _ in listing:
        other = name_of.setdefault(class_key(name), name)
        if other != name:
            raise DataError(
                f"{root}: the classes {other!a} and {name!a} differ in punctuation only and would be taken for one; "
                "rename one of them."
            )
    return sorted(name_of)


def _from_annotations(files: RawFiles) -> tuple[Path, _Listing] | None:
    """List cars_annos.mat with car_ims/."""
    for path in files.files(Cars.files[1].name):
        return files.find(["car_ims"], [Cars.files[0]]), _annotated(path, path, "relative_im_path")
    return None


def _from_devkit(files: RawFiles) -> tuple[Path, _Listing] | None:
    """List cars_train/ and cars_test/ with the devkit's annotations."""
    if files.look(["cars_train"]) is None and not files.files("cars_train.tgz"):
        return None
    names = files.find(["cars_meta.mat"], [Cars.files[4]]) / "cars_meta.mat"
    listing: _Listing = []
    for part, listed in (("train", "cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        holder = files.find([f"cars_{part}"], [Cars.files[2 if part == "train" else 3]])
        folder = holder.resolve() / f"cars_{part}"
        if (folder / f"cars_{part}").is_dir():
            folder = folder / f"cars_{part}"
        annotated = _annotated(files.find([listed], [Cars.files[4]]) / listed, names, "fname")
        listing += [(str(folder / image), name, number) for image, name, number in annotated]
    return Path("/"), listing


def _from_folders(files: RawFiles) -> tuple[Path, _Listing]:
    """List class folders; `train` and `test` folders in between are ignored, as the split is by class."""
    top = files.look(["cars196/images", "car_data", "cars196"])
    if top is None:
        raise files.missing(Cars.folders, Cars.files, [])
    root = next(top / name for name in ("cars196/images", "car_data", "cars196") if (top / name).is_dir())
    paths = [image.path for image in read_image_folder(root).images]
    return root, [(path, PurePosixPath(path).parent.name, 0) for path in paths]


def _annotated(path: Path, names: Path, field: str) -> _Listing:
    """Return file (from the field `field`), class name and class number of every annotation in `path`."""
    classes = [str(name) for name in np.atleast_1d(mat_variable(names, "class_names"))]
    listed = np.atleast_1d(mat_variable(path, "annotations"))
    lacking = {field, "class"} - set(listed.dtype.names or ())
    if lacking or not len(listed):
        raise DataError(f"{path}: its {len(listed)} annotations have no field {sorted(lacking)}; get it again.")
    listing = []
    for row, image, kind in zip(range(1, len(listed) + 1), listed[field], listed["class"], strict=True):
        where = f"{path}, annotation {row}"
        if not isinstance(image, str) or not stays_inside(image):
            raise DataError(f"{where}: {image!a} is no path inside the dataset; get it again.")
        if not isinstance(kind, int | np.integer) or not 1 <= kind <= len(classes):
            raise DataError(f"{where}: the class {kind!a} is none of the numbers 1 to {len(classes)}; get it again.")
        listing.append((image, classes[kind - 1], int(kind)))
    return listing


def _check_halves(label: np.ndarray, number: np.ndarray, half: int) -> None:
    """Raise `DataError` unless the official class numbers, where known, give the same first half of the classes."""
    label, number = label[number > 0], number[number > 0]
    place = np.unique(number, return_inverse=True)[1]
    wrong = np.flatnonzero((place < half) != (label < half))
    if len(wrong):
        raise DataError(
            f"cars: class {number[wrong[0]]} is in the other half by its name than by its number; the class names are "
            "not those of the published data set."
        )
