"""CUB-200-2011: 11,788 photographs of 200 bird species; classes 1-100 train (5,864), 101-200 test (5,924).

Read from `CUB_200_2011.tgz`, its folder `CUB_200_2011/` (with images.txt), or class folders
`cub200/images/001.Black_footed_Albatross/`. CUB-200 of 2010 (6,033 images) is recognised and refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probmetric.data.image_folder import read_image_folder
from probmetric.data.manifest import DataError
from probmetric.data.sources import RawFile, RawFiles, Table, options, register
from probmetric.data.sources._files import LAM_VIEW, VMF_SCALE, ZeroShot, existing, strings
from probmetric.data.sources._listing import once, rows

CLASSES, TRAIN = 200, 100


@register
@dataclass(frozen=True, kw_only=True)
class Cub(ZeroShot):
    """Caltech-UCSD Birds, 2011."""

    title = "CUB-200-2011"
    views = options(vmf=options(name="photos", scale=VMF_SCALE, jitter=(0.25, 0.25, 0.25, 0.0)), lam=LAM_VIEW)
    files = (RawFile("CUB_200_2011.tgz", "97eceeb196236b17998738112f37df78", "1.1 GB"),)
    folders = ("CUB_200_2011/images.txt", "CUB_200_2011/images", "cub200/images")
    where = "CaltechDATA, record 65de6-vp158 (Caltech-UCSD Birds-200-2011)"
    counts = options(images=11_788, classes=200, training=5_864, test=5_924)

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images by class and file name."""
        root = files.find(self.folders, self.files)
        root = root / ("CUB_200_2011" if (root / "CUB_200_2011").is_dir() else "cub200")
        paths, number = _listed(root)
        order = np.lexsort([paths.astype(str), number])
        paths, number = paths[order], number[order]
        existing(root / "images", paths, files.name)
        names = strings([str(path).split("/")[0].partition(".")[2].replace("_", " ") for path in paths])
        classes = np.unique(number)
        splits = self.splits(classes[classes <= TRAIN], classes[classes > TRAIN], seed)
        columns = {"file": paths, "label": number, "class_name": names}
        return self.table(files, root / "images", columns, splits)


def _listed(root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return paths relative to images/, from images.txt or from the folders, and the 1-based class of each."""
    listing = root / "images.txt"
    if listing.is_file():
        listed = rows(listing, 2)
        once(listed, 1)
        places = {row.inside(1): f"{listing}, line {row.number}" for row in listed}
    else:
        images = read_image_folder(root / "images").images
        places = {image.path: str(root / "images") for image in images if image.class_name}
    return strings(list(places)), np.array([_class_number(path, where) for path, where in places.items()])


def _class_number(path: str, where: str) -> int:
    """Return the 1-based class from the folder's prefix, as in `001.Black_footed_Albatross`."""
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
