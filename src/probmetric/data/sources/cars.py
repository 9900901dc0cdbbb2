"""CARS196: 16,185 photographs of 196 car models; the first 98 classes train (8,054), the other 98 test (8,131).

The original site is gone; three layouts are in circulation and lead to the same manifest:

    cars_annos.mat + car_ims/000001.jpg            (or car_ims.tgz)
    devkit/cars_meta.mat, devkit/cars_train_annos.mat, cars_test_annos_withlabels.mat + cars_train/, cars_test/
    images/<class name>/*.jpg                      (also split into train/ and test/ folders)

To make them agree, classes are ordered by their name (upper case first, every run of other characters than letters
and digits read as one space), as the readers of the papers' code do, and the images of a class by the SHA-256 of their
file, since the three layouts number files differently. Names sort differently from the official class numbers only
within a make; that both halves hold the same classes is checked where the official numbers are known.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources import register
from probmetric.data.sources._base import Source, Table, check_counts
from probmetric.data.sources._files import (
    LAM_VIEW,
    VMF_SCALE,
    Fold,
    Photographs,
    existing,
    image_files,
    only,
    open_set_counts,
    strings,
)
from probmetric.data.sources._listing import stays_inside
from probmetric.registry import CountOrZero

CLASSES, TRAIN = 196, 98
_Listing = list[tuple[str, str, int]]


@register
class Cars(Source):
    """Stanford Cars."""

    view: ClassVar[dict[str, Any]] = {"name": "photos"}
    views: ClassVar[dict[str, dict[str, Any]]] = {
        "vmf": {
            "name": "photos",
            "scale": VMF_SCALE,
            "ratio": (1.0, 1.0),
            "square": True,
            "jitter": (0.3, 0.3, 0.3, 0.1),
        },
        "lam": LAM_VIEW,
    }
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
    counts: ClassVar[dict[str, int]] = {"images": 16_185, "classes": 196, "train+val": 8_054, "test": 8_131}

    def __init__(
        self,
        *,
        protocol: Literal["standard", "mlrc", "vmf", "lam"] = "standard",
        fold: Fold = 0,
        shorter_side: CountOrZero = 256,
        store: Literal["pixels", "files"] = "pixels",
        subset: bool = False,
    ) -> None:
        self.chosen = Photographs(protocol, fold, shorter_side, store)

    @classmethod
    def alternatives(cls) -> list[list[str]]:
        """The three layouts."""
        devkit = ["cars_train.tgz|cars_train", "cars_test.tgz|cars_test", "car_devkit.tgz|cars_meta.mat"]
        return [
            ["cars_annos.mat", "car_ims.tgz|car_ims"],
            [*devkit, "cars_test_annos_withlabels.mat"],
            ["cars196/images|car_data"],
        ]

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images from whichever layout is there."""
        root, listing = _from_annotations(files) or _from_devkit(files) or _from_folders(files) or _none(files)
        names = _distinct(root, listing)
        if files.subset is False and len(names) != CLASSES:
            raise DataError(f"cars: found {len(names)} class names, expected {CLASSES}; see option subset.")
        paths = strings([path for path, _, _ in listing])
        existing(root, paths, files.name)
        label = np.searchsorted(np.array(names), [class_key(name) for _, name, _ in listing])
        half = TRAIN if len(names) == CLASSES else len(names) // 2
        _check_halves(label, np.array([number for _, _, number in listing]), half)
        digest = np.array([hashlib.sha256((root / path).read_bytes()).hexdigest() for path in paths])
        order = np.lexsort([digest, label])
        paths, label, digest = paths[order], label[order], digest[order]
        train = np.arange(half - 1 if self.chosen.protocol == "lam" else half)
        split = self.chosen.split(label, train, np.arange(half, len(names)), seed)
        check_counts(files, self.counts, open_set_counts(label, label < half))
        columns = {
            "path": strings([f"{names[k]}/{d[:16]}.jpg" for k, d in zip(label, digest, strict=True)]),
            "label": label,
            "class_name": strings([names[k] for k in label]),
            "split": split,
        }
        used = split != ""
        return Table(
            only(columns, used),
            self.chosen.images(root, paths[used]),
            "open_set",
            "CARS196 (Stanford Cars)",
            parallel=True,
        )


def class_key(name: str) -> str:
    """Class name with every run of characters other than letters and digits as one space."""
    return re.sub(r"[^A-Za-z0-9]+", " ", name).strip()


def _distinct(root: Path, listing: _Listing) -> list[str]:
    """Class keys in order; two names of classes must not have one key."""
    known: dict[str, str] = {}
    for _, name, _ in listing:
        other = known.setdefault(class_key(name), name)
        if other != name:
            raise DataError(
                f"{root}: the classes {other!a} and {name!a} differ in punctuation only and would be taken for one; "
                "rename one of them."
            )
    return sorted(known)


def _from_annotations(files: RawFiles) -> tuple[Path, _Listing] | None:
    """cars_annos.mat with car_ims/."""
    marker = files.look(["cars_annos.mat"])
    if marker is None:
        return None
    path = marker / "cars_annos.mat"
    names, listed = _class_names(path), _annotations(path, "relative_im_path")
    root = files.find(["car_ims"], [Cars.files[0]])
    return root, [(image, _name(names, number, path), number) for image, number in listed]


def _from_devkit(files: RawFiles) -> tuple[Path, _Listing] | None:
    """cars_train/ and cars_test/ with the devkit's annotations."""
    if files.look(["cars_train"]) is None and not files.files("cars_train.tgz"):
        return None
    meta = files.find(["cars_meta.mat"], [Cars.files[4]])
    names = _class_names(meta / "cars_meta.mat")
    listing: _Listing = []
    for part, listed in (("train", "cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        folder = files.find([f"cars_{part}"], [Cars.files[2 if part == "train" else 3]]) / f"cars_{part}"
        if (folder / f"cars_{part}").is_dir():
            folder = folder / f"cars_{part}"
        path = files.find([listed], [Cars.files[4]]) / listed
        for image, number in _annotations(path, "fname"):
            listing.append((str(folder / image), _name(names, number, path), number))
    return Path("/"), listing


def _from_folders(files: RawFiles) -> tuple[Path, _Listing] | None:
    """Class folders; `train` and `test` folders in between are ignored, as the split is by class."""
    top = files.look(["cars196/images", "car_data", "cars196"])
    if top is None:
        return None
    root = next(top / name for name in ("cars196/images", "car_data", "cars196") if (top / name).is_dir())
    return root, [(path.relative_to(root).as_posix(), path.parent.name, 0) for path in image_files(root, "**/*")]


def _none(files: RawFiles) -> tuple[Path, _Listing]:
    raise files.missing(Cars.folders, Cars.files, [])


def _class_names(path: Path) -> list[str]:
    return [str(name) for name in np.atleast_1d(_variable(path, "class_names"))]


def _annotations(path: Path, field: str) -> list[tuple[str, int]]:
    """File, as `field` names it, and class number of every annotation."""
    listed = np.atleast_1d(_variable(path, "annotations"))
    lacking = {field, "class"} - set(listed.dtype.names or ())
    if lacking or not len(listed):
        raise DataError(f"{path}: its {len(listed)} annotations have no field {sorted(lacking)}; get it again.")
    return [_annotation(path, i, row[field], row["class"]) for i, row in enumerate(listed, start=1)]


def _annotation(path: Path, number: int, image: Any, kind: Any) -> tuple[str, int]:
    if not isinstance(image, str) or not stays_inside(image):
        raise DataError(f"{path}, annotation {number}: {image!a} is no path inside the dataset; get it again.")
    if np.shape(kind) != () or not isinstance(kind, int | np.integer):
        raise DataError(f"{path}, annotation {number}: the class {kind!a} is no whole number; get it again.")
    return image, int(kind)


def _name(names: list[str], number: int, path: Path) -> str:
    if not 1 <= number <= len(names):
        raise DataError(f"{path}: class {number} of an annotation is none of 1 to {len(names)}; get it again.")
    return names[number - 1]


def _variable(path: Path, name: str) -> Any:
    """A variable of a .mat file."""
    from scipy.io import loadmat

    try:
        return loadmat(path, squeeze_me=True, variable_names=[name])[name]
    except KeyError as error:
        raise DataError(f"{path} holds no variable {name!r}; it is another file, get it again.") from error
    except Exception as error:  # a reader of other people's bytes may stumble anywhere
        raise DataError(f"{path} is no readable .mat file ({error}); get it again.") from error


def _check_halves(label: np.ndarray, number: np.ndarray, half: int) -> None:
    """Official class numbers, where known, must put the same classes into the first half."""
    known = number > 0
    first = np.argsort(np.argsort(np.unique(number[known]))) < half
    official = dict(zip(np.unique(number[known]).tolist(), first.tolist(), strict=True))
    wrong = [int(n) for k, n in zip(label[known], number[known], strict=True) if official[int(n)] != (k < half)]
    if wrong:
        raise DataError(
            f"cars: class {wrong[0]} is in the other half by its name than by its number; the class names are not "
            "those of the published data set."
        )
