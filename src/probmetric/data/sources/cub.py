"""CUB-200-2011: 11,788 photographs of 200 bird species; classes 1-100 train (5,864), 101-200 test (5,924).

Read from `CUB_200_2011.tgz`, its folder `CUB_200_2011/` (with images.txt), or class folders
`cub200/images/001.Black_footed_Albatross/`. CUB-200 of 2010 (6,033 images) is recognised and refused.
"""

from __future__ import annotations

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
    open_set_counts,
    strings,
)
from probmetric.data.sources._listing import once, rows
from probmetric.registry import CountOrZero

CLASSES, TRAIN = 200, 100


@register
class Cub(Source):
    """Caltech-UCSD Birds, 2011."""

    view: ClassVar[dict[str, Any]] = {"name": "photos"}
    views: ClassVar[dict[str, dict[str, Any]]] = {
        "vmf": {"name": "photos", "scale": VMF_SCALE, "jitter": (0.25, 0.25, 0.25, 0.0)},
        "lam": LAM_VIEW,
    }
    files = (RawFile("CUB_200_2011.tgz", "97eceeb196236b17998738112f37df78", "1.1 GB"),)
    folders = ("CUB_200_2011/images.txt", "CUB_200_2011/images", "cub200/images")
    where = "CaltechDATA, record 65de6-vp158 (Caltech-UCSD Birds-200-2011)"
    counts: ClassVar[dict[str, int]] = {"images": 11_788, "classes": 200, "train+val": 5_864, "test": 5_924}

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

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images by class and file name."""
        root = files.find(self.folders, self.files)
        root = root / ("CUB_200_2011" if (root / "CUB_200_2011").is_dir() else "cub200")
        paths, number = _listed(root)
        order = np.lexsort([paths.astype(str), number])
        paths, number = paths[order], number[order]
        labels = np.unique(number, return_inverse=True)[1]
        classes = np.unique(number)
        split = self.chosen.split(number, classes[classes <= TRAIN], classes[classes > TRAIN], seed)
        existing(root / "images", paths, files.name)
        check_counts(files, self.counts, open_set_counts(number, number <= TRAIN))
        return Table(
            {
                "path": paths,
                "label": labels,
                "class_name": strings([str(path).split("/")[0].partition(".")[2].replace("_", " ") for path in paths]),
                "split": split,
            },
            self.chosen.images(root / "images", paths),
            "open_set",
            "CUB-200-2011",
            parallel=True,
        )


def _listed(root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Paths relative to images/, from images.txt or from the folders, and the 1-based class of each."""
    listing = root / "images.txt"
    if listing.is_file():
        listed = rows(listing, 2)
        once(listed, lambda row: row.cells[1])
        paths = [row.inside(1) for row in listed]
        number = [_class_number(path, f"{listing}, line {row.number}") for path, row in zip(paths, listed, strict=True)]
    else:
        paths = [f"{path.parent.name}/{path.name}" for path in image_files(root / "images", "*/*")]
        number = [_class_number(path, str(root / "images")) for path in paths]
    return strings(paths), np.array(number)


def _class_number(path: str, where: str) -> int:
    """1-based class from the folder's prefix, as in `001.Black_footed_Albatross`."""
    prefix = path.split("/")[0].split(".")[0]
    stem = path.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    if not re.fullmatch("[0-9]{1,3}", prefix) or not 1 <= int(prefix) <= CLASSES:
        raise DataError(f"{where}: {path!a} does not begin with a class number 001 to {CLASSES}; is this CUB-200-2011?")
    if len(stem.rsplit("_", 1)[-1]) >= 9 and stem.rsplit("_", 1)[-1].isdigit():
        raise DataError(
            f"{where}: {path} is named as in CUB-200 of 2010 (by the photo site's long number); "
            "CUB-200-2011 is needed (11,788 images)."
        )
    return int(prefix)
