"""Stanford Online Products: 120,053 images of 22,634 products; Ebay_train (59,551 images, 11,318 products), Ebay_test
(60,502 images, 11,316 products).

Read from `Stanford_Online_Products.zip`, its folder, or `online_products/` with `images/` and `Info_Files/`. The JPEG
files are stored as they are (3 GB, prepared at the speed of the disk); `store: pixels` decodes them once (27 GB), for
the fastest training.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources import register
from probmetric.data.sources._base import Source, Table, check_counts
from probmetric.data.sources._files import VMF_SCALE, Fold, Photographs, existing, open_set_counts, strings
from probmetric.data.sources._listing import once, rows
from probmetric.registry import CountOrZero

HEADER = ["image_id", "class_id", "super_class_id", "path"]


@register
class Sop(Source):
    """Stanford Online Products."""

    view: ClassVar[dict[str, Any]] = {"name": "photos"}
    views: ClassVar[dict[str, dict[str, Any]]] = {"vmf": {"name": "photos", "scale": VMF_SCALE, "square": True}}
    files = (RawFile("Stanford_Online_Products.zip", "7f73d41a2f44250d4779881525aea32e", "3.1 GB"),)
    folders = ("Stanford_Online_Products/Ebay_train.txt", "online_products/Info_Files/Ebay_train.txt")
    where = "Stanford CVGL (Deep Metric Learning via Lifted Structured Feature Embedding, project page)"
    counts: ClassVar[dict[str, int]] = {
        "images": 120_053,
        "classes": 22_634,
        "train+val": 59_551,
        "test": 60_502,
        "training classes": 11_318,
        "test classes": 11_316,
    }

    def __init__(
        self,
        *,
        protocol: Literal["standard", "mlrc", "vmf", "lam"] = "standard",
        fold: Fold = 0,
        shorter_side: CountOrZero = 256,
        store: Literal["pixels", "files"] = "files",
        subset: bool = False,
    ) -> None:
        self.chosen = Photographs(protocol, fold, shorter_side, store)

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images of both published lists, in their order."""
        root = files.find(self.folders, self.files)
        if (root / "Stanford_Online_Products").is_dir():
            images = lists = root / "Stanford_Online_Products"
        else:
            images, lists = root / "online_products" / "images", root / "online_products" / "Info_Files"
        train, test = (rows(lists / f"Ebay_{part}.txt", len(HEADER), header=HEADER) for part in ("train", "test"))
        listed = train + test
        once(listed, lambda row: row.cells[3])
        number = np.array([row.whole(1, low=1) for row in listed])
        paths = strings([row.inside(3) for row in listed])
        existing(images, paths, files.name)
        seen, unseen = (np.unique(part) for part in (number[: len(train)], number[len(train) :]))
        if np.intersect1d(seen, unseen).size:
            raise DataError(f"{lists}: Ebay_train.txt and Ebay_test.txt share classes; these are other lists.")
        split = self.chosen.split(number, seen, unseen, seed)
        check_counts(files, self.counts, open_set_counts(number, np.isin(number, seen)))
        kind = [path.split("/")[0].removesuffix("_final") for path in paths]
        return Table(
            {
                "path": paths,
                "label": np.unique(number, return_inverse=True)[1],
                "class_name": strings([f"{k} {n}" for k, n in zip(kind, number, strict=True)]),
                "split": split,
                "super_class": strings(kind),
            },
            self.chosen.images(images, paths),
            "open_set",
            "Stanford Online Products",
            parallel=True,
        )
