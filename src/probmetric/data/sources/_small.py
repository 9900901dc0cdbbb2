"""Data sets of small images that torchvision reads: MNIST, FashionMNIST, CIFAR-10, CIFAR-100, SVHN.

torchvision's readers run on the user's files; nothing is downloaded. Their MD5 checks are replaced by ours
(`RawFiles.check`), which also accept a subset when asked to, and CIFAR's pickles are read by a restricted
unpickler first: only NumPy arrays and plain containers may be in them.

Splits: the published test set tests; 15 % of the training images, stratified, validate. With `protocol: vmf` they are
the ones scikit-learn's stratified split draws with random_state 1234, as in the released code of the vMF paper.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from probmetric.data.archives import DAMAGE, copy_limited, unpacked_limit
from probmetric.data.manifest import DataError
from probmetric.data.raw import RawFile, RawFiles
from probmetric.data.sources._base import Source, Table, check_counts
from probmetric.data.sources._listing import check_labels
from probmetric.data.splits import hold_out_images

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


class SmallImages(Source):
    """A data set with a published training and test part.

    Attributes:
        protocol: how validation images are drawn.
    """

    closed_set = True
    protocol: FixedProtocol

    def table(self, files: RawFiles, parts: tuple[Part, Part], names: Sequence[str], what: str, seed: int) -> Table:
        """Return the table of both parts.

        Args:
            files: the raw files, for notes.
            parts: training and test (images (N, H, W, C) uint8, labels (N,)).
            names: class names.
            what: description for summary.json.
            seed: seed of the validation split.

        Raises:
            DataError: labels that are no class, or counts other than the published ones.
        """
        for part, (pixels, numbers) in zip(("training", "test"), parts, strict=True):
            check_labels(f"{files.name}, {part} images", pixels, numbers, names)
        (train, train_labels), (test, test_labels) = parts
        if train.shape[1:] != test.shape[1:]:
            raise DataError(f"{files.name}: training images are {train.shape[1:]}, test images {test.shape[1:]}.")
        images = np.concatenate([train, test])
        labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
        split = np.concatenate([np.full(len(train), "train"), np.full(len(test), "test")]).astype("<U5")
        split[np.flatnonzero(_held_out(train_labels, self.protocol, seed))] = "val"
        counts = {"train+val": len(train), "test": len(test), "classes": len(np.unique(labels))}
        check_counts(files, self.counts, counts)
        paths = [f"train/{i:05d}" for i in range(len(train))] + [f"test/{i:05d}" for i in range(len(test))]
        columns = {
            "path": np.array(paths),
            "label": labels,
            "class_name": np.array([names[label] for label in labels]),
            "split": split,
        }
        return Table(columns, images.__getitem__, "closed_set", what)


def _held_out(labels: np.ndarray, protocol: FixedProtocol, seed: int) -> np.ndarray:
    if protocol == "standard":
        return hold_out_images(labels, VAL_FRACTION, np.random.default_rng(seed))
    from sklearn.model_selection import train_test_split

    _, held = train_test_split(np.arange(len(labels)), test_size=VAL_FRACTION, stratify=labels, random_state=1234)
    return np.isin(np.arange(len(labels)), held)


def read_offline(files: RawFiles, what: str, reader: Callable[[], Any]) -> Any:
    """Call a torchvision reader; its complaints become errors that name the data set's files."""
    try:
        return reader()
    except Exception as error:  # a reader of other people's bytes may stumble anywhere
        raise DataError(
            f"{files.name}: {what} cannot be read ({error}); it is damaged or truncated, get it again."
        ) from error


def idx_files(files: RawFiles, known: Sequence[RawFile], target: Path) -> Path:
    """Put the four ubyte files, unpacked if they are gzipped, into `target`; returns `target`."""
    target.mkdir(parents=True, exist_ok=True)
    for file in known:
        plain = file.name.removesuffix(".gz")
        found = files.files(file.name) or files.files(plain)
        if not found:
            raise files.missing([plain], known, [])
        files.check(found[0], file if found[0].name == file.name else RawFile(plain))
        try:
            (target / plain).unlink(missing_ok=True)
            with gzip.open(found[0]) if found[0].suffix == ".gz" else found[0].open("rb") as source:
                copy_limited(found[0], plain, source, target / plain, unpacked_limit(found[0], target))
        except DAMAGE as error:
            raise DataError(f"{found[0]} is damaged or truncated ({error}); get it again.") from error
    return target


def check_pickle(path: Path) -> None:
    """Raise `DataError` unless a pickle holds nothing but NumPy arrays and plain containers."""
    try:
        with path.open("rb") as file:
            _ArraysOnly(file, encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # an unpickler of other people's bytes may stumble anywhere
        raise DataError(f"{path} is damaged or truncated ({error}); get it again.") from error


class _ArraysOnly(pickle.Unpickler):
    """Unpickler that knows the few names a pickled NumPy array needs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _SAFE:
            raise DataError(
                f"a pickle holds {module}.{name}, which would run code when read; it is not a published file."
            )
        return super().find_class(module, name)


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


def read_cifar(files: RawFiles, archive: RawFile, hundred: bool) -> tuple[tuple[Part, Part], list[str]]:
    """Training and test images (N, 32, 32, 3) uint8 with labels (N,), and the class names."""
    folder = "cifar-100-python" if hundred else "cifar-10-batches-py"
    root = files.find([folder], [archive])
    for path in sorted((root / folder).iterdir()):
        if path.suffix == "" and path.is_file():
            check_pickle(path)
    sets = [read_offline(files, folder, partial(_reader(hundred), root, train)) for train in (True, False)]
    parts = [read_offline(files, folder, partial(_arrays, part)) for part in sets]
    return (parts[0], parts[1]), [str(name) for name in sets[0].classes]


def _arrays(part: Any) -> Part:
    return np.asarray(part.data), np.asarray(part.targets)


def _reader(hundred: bool) -> Any:
    """Torchvision's class without its MD5 check: archives are checked as a whole, and a subset may be accepted."""
    from torchvision.datasets import CIFAR10, CIFAR100

    base: Any = CIFAR100 if hundred else CIFAR10

    class Offline(base):  # type: ignore[misc]
        meta: ClassVar[dict[str, Any]] = {**base.meta, "md5": None}

        def __init__(self, root: Path, train: bool) -> None:
            super().__init__(root, train=train, download=False)

        def _check_integrity(self) -> bool:
            return True

    return Offline
