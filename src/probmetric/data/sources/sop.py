"""Stanford Online Products: 120,053 images of 22,634 products; Ebay_train (59,551 images, 11,318 products), Ebay_test
(60,502 images, 11,316 products).

Read from `Stanford_Online_Products.zip`, its folder, or `online_products/` with `images/` and `Info_Files/`. The JPEG
files are stored as they are (3 GB, prepared at the speed of the disk); `store: pixels` decodes them once (27 GB), for
the fastest training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.sources import RawFile, RawFiles, Table, options, register
from probmetric.data.sources._files import VMF_SCALE, Store, ZeroShot, existing, strings
from probmetric.data.sources._listing import once, rows

HEADER = ["image_id", "class_id", "super_class_id", "path"]


@register
@dataclass(frozen=True, kw_only=True)
class Sop(ZeroShot):
    """Stanford Online Products."""

    title = "Stanford Online Products"
    views = options(vmf=options(name="photos", scale=VMF_SCALE, square=True))
    files = (RawFile("Stanford_Online_Products.zip", "7f73d41a2f44250d4779881525aea32e", "3.1 GB"),)
    folders = ("Stanford_Online_Products/Ebay_train.txt", "online_products/Info_Files/Ebay_train.txt")
    where = "Stanford CVGL (Deep Metric Learning via Lifted Structured Feature Embedding, project page)"
    counts = options(
        images=120_053, classes=22_634, training=59_551, test=60_502, training_classes=11_318, test_classes=11_316
    )

    store: Store = "files"

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images of both published lists, in their order."""
        root = files.find(self.folders, self.files)
        if (root / "Stanford_Online_Products").is_dir():
            images = lists = root / "Stanford_Online_Products"
        else:
            images, lists = root / "online_products" / "images", root / "online_products" / "Info_Files"
        train, test = (rows(lists / f"Ebay_{part}.txt", len(HEADER), header=HEADER) for part in ("train", "test"))
        listed = train + test
        once(listed, 3)
        number = np.array([row.whole(1, low=1) for row in listed])
        paths = strings([row.inside(3) for row in listed])
        existing(images, paths, files.name)
        seen, unseen = (np.unique(part) for part in (number[: len(train)], number[len(train) :]))
        if np.intersect1d(seen, unseen).size:
            raise DataError(f"{lists}: Ebay_train.txt and Ebay_test.txt share classes; these are other lists.")
        kind = [path.split("/")[0].removesuffix("_final") for path in paths]
        names = strings([f"{k} {n}" for k, n in zip(kind, number, strict=True)])
        columns = {"file": paths, "label": number, "class_name": names, "super_class": strings(kind)}
        return self.table(files, images, columns, self.splits(seen, unseen, seed))
