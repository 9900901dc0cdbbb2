"""Data sets of small images that torchvision reads: MNIST, FashionMNIST, CIFAR-10, CIFAR-100, SVHN.

torchvision's readers run on the user's files; nothing is downloaded. Their MD5 checks are replaced by ours
(`RawFiles.check`), which also accept a subset when asked to, and CIFAR's pickles are read by a restricted
unpickler first: only NumPy arrays and plain containers may be in them.

Splits: the published test set tests; 15 % of the training images, stratified, validate. With `protocol: vmf` they are
the ones scikit-learn's stratified split draws with random_state 1234, as in the released code of the vMF paper.

Annotations are not postponed here: a source inherits options of other modules with their ranges.
"""

import gzip
import pickle
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        """Read both parts with torchvision.

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
        counts = {"train+val": len(train), "test": len(test), "classes": len(np.unique(labels))}
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


def read_offline(files: RawFiles, what: str, reader: Callable[[], Any]) -> Any:
    """Call a torchvision reader; its complaints become errors that name the data set's files."""
    try:
        return reader()
    except Exception as error:  # a reader of other people's bytes may stumble anywhere
        raise DataError(
            f"{files.name}: {what} cannot be read ({error}); it is damaged or truncated, get it again."
        ) from error


def idx_files(files: RawFiles, archives: Sequence[RawFile], target: Path) -> Path:
    """Put the four ubyte files, unpacked if they are gzipped, into `target`; return `target`."""
    target.mkdir(parents=True, exist_ok=True)
    for file in archives:
        plain = file.name.removesuffix(".gz")
        path = files.checked(RawFile(plain) if files.files(plain) and not files.files(file.name) else file)
        try:
            (target / plain).unlink(missing_ok=True)
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
                copy_limited(path, plain, source, target / plain, unpacked_limit(path, target))
        except DAMAGE as error:
            raise DataError(f"{path} is damaged or truncated ({error}); get it again.") from error
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


class IdxImages(SmallImages):
    """Images in MNIST's format: four ubyte files, gzipped or not."""

    def parts(self, files: RawFiles) -> tuple[Part, Part, Sequence[str]]:
        """Return images (N, 28, 28, 1) uint8 and labels (N,) of the four files."""
        folder = idx_files(files, self.files, files.work / "ubyte")
        from torchvision.datasets.mnist import read_image_file, read_label_file

        parts = []
        for images, labels in (STEMS[:2], STEMS[2:]):
            pixels = read_offline(files, images, partial(read_image_file, str(folder / images)))
            numbers = read_offline(files, labels, partial(read_label_file, str(folder / labels)))
            parts.append((pixels.numpy()[..., None], numbers.numpy()))
        return parts[0], parts[1], self.classes


def idx_names(*digests: str) -> tuple[RawFile, ...]:
    """Return the four gzipped files with their published MD5."""
    return tuple(RawFile(f"{stem}.gz", md5) for stem, md5 in zip(STEMS, digests, strict=True))


class CifarImages(SmallImages):
    """Images in CIFAR's format: pickled batches in one archive."""

    def parts(self, files: RawFiles) -> tuple[Part, Part, Sequence[str]]:
        """Return images (N, 32, 32, 3) uint8 and labels (N,) of the batches."""
        (folder,) = self.folders
        root = files.find(self.folders, self.files)
        for path in sorted((root / folder).iterdir()):
            if path.suffix == "" and path.is_file():
                check_pickle(path)
        sets = [read_offline(files, folder, partial(self._reader(), root, train)) for train in (True, False)]
        train, test = (read_offline(files, folder, partial(_arrays, part)) for part in sets)
        return train, test, [str(name) for name in sets[0].classes]

    def _reader(self) -> Any:
        """Return torchvision's class without its MD5 check: archives are checked whole, and a subset may do."""
        from torchvision import datasets

        base: Any = getattr(datasets, self.title.replace("-", ""))

        class Offline(base):  # type: ignore[misc]
            meta: ClassVar[dict[str, Any]] = {**base.meta, "md5": None}

            def __init__(self, root: Path, train: bool) -> None:
                super().__init__(root, train=train, download=False)

            def _check_integrity(self) -> bool:
                return True

        return Offline


def _arrays(part: Any) -> Part:
    return np.asarray(part.data), np.asarray(part.targets)
