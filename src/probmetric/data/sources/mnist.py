"""MNIST and FashionMNIST: 70,000 grey images, 28x28, of 10 classes; 60,000 train (15 % of them validate), 10,000 test.

Read from four ubyte files, gzipped or not. Both datasets use the same file names: put them into `data/raw/mnist/` and
`data/raw/fashion_mnist/` (torchvision's `MNIST/raw/` and, in the latter, `FashionMNIST/raw/` are found too).
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.data.archives import DAMAGE, copy_limited, unpacked_limit
from probmetric.data.manifest import refusing
from probmetric.data.sources import RawFile, RawFiles, options, register
from probmetric.data.sources._small import ANEW, Part, SmallImages

STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class IdxImages(SmallImages):
    """Images in MNIST's format: four ubyte files, gzipped or not."""

    def parts(self, files: RawFiles) -> tuple[Part, Part, Sequence[str]]:
        """Return images (N, 28, 28, 1) uint8 and labels (N,) of the four files."""
        images, labels, test_images, test_labels = (_idx(files, file) for file in self.files)
        return (images[..., None], labels), (test_images[..., None], test_labels), self.classes


def _idx(files: RawFiles, file: RawFile) -> np.ndarray:
    """Return the uint8 array in an IDX file: a magic number, as many sizes as its last byte says, values."""
    plain = file.name.removesuffix(".gz")
    path = files.checked(RawFile(plain) if files.files(plain) and not files.files(file.name) else file)
    copy = files.work / "ubyte" / plain
    copy.unlink(missing_ok=True)
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with refusing(f"{path} is damaged or truncated", "get it again", *DAMAGE), opened(path, "rb") as source:
        copy_limited(path, plain, source, copy, unpacked_limit(path, files.work))
    with refusing(f"{files.name}: {plain} cannot be read", ANEW):
        data = copy.read_bytes()
        if data[:3] != b"\0\0\x08" or len(data) < 4:
            raise ValueError(f"it begins with {data[:4]!r}")
        shape = np.frombuffer(data, dtype=">u4", count=data[3], offset=4)
        return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def idx_names(*digests: str) -> tuple[RawFile, ...]:
    """Return the four gzipped files with their published MD5."""
    return tuple(RawFile(f"{stem}.gz", md5) for stem, md5 in zip(STEMS, digests, strict=True))


@register("mnist")
@dataclass(frozen=True, kw_only=True)
class Mnist(IdxImages):
    """Handwritten digits."""

    title = "MNIST"
    view = options(name="small")
    files = idx_names(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    )
    homes = ("mnist", "MNIST")
    where = "yann.lecun.com/exdb/mnist or its mirrors (torchvision can download them)"
    counts = options(training=60_000, test=10_000, classes=10)


@register("fashion_mnist")
@dataclass(frozen=True, kw_only=True)
class FashionMnist(IdxImages):
    """Clothing."""

    title = "FashionMNIST"
    classes = (
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    )
    view = options(name="small")
    files = idx_names(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    )
    homes = ("fashion_mnist", "FashionMNIST")
    where = "github.com/zalandoresearch/fashion-mnist (torchvision can download it)"
    counts = options(training=60_000, test=10_000, classes=10)
