"""Reading MNIST and FashionMNIST, which share their format and file names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources._small import Part, idx_files, read_offline

STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_names(*digests: str) -> tuple[RawFile, ...]:
    """The four gzipped files with their published MD5."""
    return tuple(RawFile(f"{stem}.gz", md5) for stem, md5 in zip(STEMS, digests, strict=True))


def read_idx(files: RawFiles, known: Sequence[RawFile]) -> tuple[Part, Part]:
    """Training and test images (N, 28, 28, 1) uint8 and labels (N,)."""
    folder = idx_files(files, known, files.work / "ubyte")
    from torchvision.datasets.mnist import read_image_file, read_label_file

    parts = []
    for images, labels in (STEMS[:2], STEMS[2:]):
        pixels = read_offline(files, images, partial(read_image_file, str(folder / images)))
        numbers = read_offline(files, labels, partial(read_label_file, str(folder / labels)))
        parts.append((pixels.numpy()[..., None], numbers.numpy()))
    return parts[0], parts[1]
