"""Data sets of small images: MNIST, FashionMNIST, CIFAR-10, CIFAR-100, SVHN.

Their files are the user's; nothing is downloaded. CIFAR's pickles are read by a restricted unpickler: only NumPy arrays
and plain containers may be in them.

Splits: the published test set tests; 15 % of the training images, stratified, validate. With `protocol: vmf` they are
the ones scikit-learn's stratified split draws with random_state 1234, as in the released code of the vMF paper.

Annotations are not postponed here: a source inherits options of other modules with their ranges.
"""

import gzip
import pickle
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from probmetric.data.archives import DAMAGE, copy_limited, unpacked_limit
from probmetric.data.manifest import DataError, refusing
from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources._base import Source, Table, check_counts
from probmetric.data.sources._listing import check_labels
from probmetric.data.splits import hold_out_images
from probmetric.registry import Flag

FixedProtocol = Literal["standard", "vmf"]
Part = tuple[np.ndarray, np.ndarray]
VAL_FRACTION = 0.15
STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
# Views of the papers: small shifts and flips; the Laplacian metric learner has statistics of ImageNet.
CIFAR_VIEW: dict[str, Any] = {"name": "small", "shift": 4, "padding": "reflect", "flip": True, "erase": 8}
IMAGENET_VIEW: dict[str, Any] = {"name": "small", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_SAFE = {
    ("_codecs", "encode"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


@dataclass(frozen=True, kw_only=True)
class SmallImages(Source):
    """A data set with a published training and test part.

    Attributes:
        title: what summary.json calls it.
        classes: names of the classes.
        protocol: how validation images are drawn.
        subset: work with what is there, which may be less than what was published.
    """

    title: ClassVar[str]
    classes: ClassVar[Sequence[str]] = tuple(f"digit {i}" for i in range(10))
    closed_set: ClassVar[Flag] = True

    protocol: FixedProtocol = "standard"
    subset: bool = False

    @abstractmethod
    def parts(self, files: RawFiles) -> tuple[Part, Part, Sequence[str]]:
        """Return training and test (images (N, H, W, C) uint8, labels (N,)), and the names of the classes."""

    def read(self, files: RawFiles, *, seed: int) -> Table:
        """List the images of both parts.

        Raises:
            DataError: labels that are no class, or counts other than the published ones.
        """
        (train, train_labels), (test, test_labels), names = self.parts(files)
        check_labels(f"{files.name}, training images", train, train_labels, names)
        check_labels(f"{files.name}, test images", test, test_labels, names)
        if train.shape[1:] != test.shape[1:]:
            raise DataError(f"{files.name}: training images are {train.shape[1:]}, test images {test.shape[1:]}.")
        images = np.concatenate([train, test])
        labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
        split = np.repeat(["train", "test"], [len(train), len(test)])
        split[np.flatnonzero(_held_out(train_labels, self.protocol, seed))] = "val"
        counts = {"training": len(train), "test": len(test), "classes": len(np.unique(labels))}
        check_counts(files, self.counts, counts)
        paths = [f"{part}/{i:05d}" for part, rows in (("train", train), ("test", test)) for i in range(len(rows))]
        columns = {"path": np.array(paths), "label": labels, "class_name": np.array(names)[labels], "split": split}
        return Table(columns, images.__getitem__, "closed_set", self.title)


def _held_out(labels: np.ndarray, protocol: FixedProtocol, seed: int) -> np.ndarray:
    if protocol == "standard":
        return hold_out_images(labels, VAL_FRACTION, np.random.default_rng(seed))
    from sklearn.model_selection import train_test_split

    _, held = train_test_split(np.arange(len(labels)), test_size=VAL_FRACTION, stratify=labels, random_state=1234)
    return np.isin(np.arange(len(labels)), held)


ANEW = "it is damaged or truncated, get it again"


def safe_pickle(path: Path) -> Any:
    """Return what a pickle holds, if that is nothing but NumPy arrays and plain containers.

    Raises:
        DataError: it holds anything else, or is damaged.
    """
    with refusing(f"{path} cannot be read", ANEW), path.open("rb") as file:
        return _ArraysOnly(file, encoding="latin1").load()


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that knows the few names a pickled NumPy array needs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _SAFE:
            raise ValueError(f"it holds {module}.{name}, which would run code when read: it is no published file")
        return super().find_class(module, name)


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


class CifarImages(SmallImages):
    """Images in CIFAR's format: pickled batches in one archive.

    Attributes:
        batches: names of the files of training and of test images.
        labels: keys of the labels in a batch, and file and key of the names of classes.
    """

    batches: ClassVar[tuple[Sequence[str], Sequence[str]]]
    labels: ClassVar[tuple[str, str, str]]

    def parts(self, files: RawFiles) -> tuple[Part, Part, Sequence[str]]:
        """Return images (N, 32, 32, 3) uint8 and labels (N,) of the batches."""
        root = files.find(self.folders, self.files) / self.folders[0]
        key, listing, names = self.labels
        train, test = (_joined([safe_pickle(root / name) for name in part], key, root) for part in self.batches)
        classes = safe_pickle(root / listing)
        with refusing(f"{root / listing} cannot be read", ANEW):
            return train, test, [str(name) for name in classes[names]]


def _joined(batches: list[dict[str, Any]], key: str, root: Path) -> Part:
    with refusing(f"{root} cannot be read", ANEW):
        pixels = np.concatenate([np.asarray(batch["data"]) for batch in batches]).reshape(-1, 3, 32, 32)
        return pixels.transpose(0, 2, 3, 1), np.concatenate([np.asarray(batch[key]) for batch in batches])
