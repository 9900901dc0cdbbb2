"""Read images in any form as an `ImageSource`: files, folders, PIL images, arrays, tensors, your own datasets.

An image is a path, the bytes of a file, a PIL image, an array (H, W) or (H, W, C), or a tensor (C, H, W). All are
decoded as in preparation (`data.decode`), so that a picture has the same embedding in every form.
Items of a `torch.utils.data.Dataset` are images, or (image, label).
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.data.decode import Mode, decode, decode_file, decoded
from probmetric.data.image_file import workers_available
from probmetric.data.image_folder import read_image_folder
from probmetric.data.manifest import MANIFEST, DataError, listed_problems, load_columns, verify_digest
from probmetric.data.store import open_images

if TYPE_CHECKING:
    from torch import Tensor

    from probmetric.data.images import Eye
    from probmetric.data.views._base import Images

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LooseImages:
    """Images in any form, read and decoded when they are needed.

    Attributes:
        images: the images (N).
        paths: name of each (N).
        class_names: class of each (N), "" where none is known.
        splits: split of each (N), where the images have one.
        eye: how the encoder that reads them sees an image; `load` needs it.
        classes: sorted class names, which labels number; () takes the names of the images' classes.
    """

    images: Sequence[Any]
    paths: Sequence[str] = ()
    class_names: Sequence[str] = ()
    splits: Sequence[str] = ()
    eye: Eye | None = None
    classes: tuple[str, ...] = ()

    @property
    def labels(self) -> np.ndarray:
        """Number of every image's class (N,) among `classes`."""
        names = np.array(self.class_names, dtype=str)
        return np.searchsorted(np.array(self.classes or np.unique(names), dtype=str), names)

    @property
    def index(self) -> np.ndarray:
        """Place of every image (N,)."""
        return np.arange(len(self))

    def __len__(self) -> int:
        return len(self.images)

    def load(self, rows: np.ndarray) -> Images:
        """Return pixels of the images at the positions `rows` (B,) one by one, or tensors as inputs (B, ...).

        Raises:
            DataError: an image cannot be read, or a tensor has another shape or numbers that are not finite.
        """
        if self.eye is None:
            raise DataError("no encoder reads these images yet: they need an `eye`.")
        if self.eye.tensor:
            import torch

            inputs = torch.stack([_tensor(self.images[int(row)], self.eye.tensor) for row in rows])
            bad = (~inputs.isfinite()).flatten(1).any(dim=1)
            if bad.any():
                row = int(rows[int(bad.int().argmax())])
                name = self.paths[row] if self.paths else f"image {row}"
                raise DataError(f"{name} holds a value that is no finite number; mend it, or leave it out.")
            return inputs
        mode, side = self.eye.mode, self.eye.shorter_side or None
        return (pixels_of(self.images[int(row)], mode, side) for row in rows)


class _Lazy(Sequence[Any]):
    """Images that are read when they are needed."""

    def __init__(self, count: int, read: Callable[[int], Any]) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            rows = range(self._count)[index]
            return _Lazy(len(rows), lambda number: self._read(rows[number]))
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._read(index)


# ---- input of the caller -----------------------------------------------------------------------------------------


def loose_images(
    images: Any, paths: Sequence[str] | None = None, class_names: Sequence[Any] | np.ndarray | None = None
) -> LooseImages:
    """Return images with names and classes.

    Args:
        images: a folder, with one folder per class or without, a prepared dataset's folder, a sequence of images and
            folders, or a dataset.
        paths: names of the images, by default their paths.
        class_names: their classes, names or whole numbers; by default names of folders, or the labels of a dataset.

    Raises:
        DataError: the number of names or classes is not that of the images, a name occurs twice, or a class is neither
            a name nor a whole number.
    """
    source = _source(images)
    names = [_class_name(name, ()) for name in (source.class_names if class_names is None else class_names)]
    if class_names is not None and isinstance(source.images, list):
        _warn_of_contradictions(source.images, names)
    chosen = LooseImages(source.images, source.paths if paths is None else list(map(str, paths)), names)
    for what, listed in (("paths", chosen.paths), ("class_names", chosen.class_names)):
        if len(listed) != len(chosen):
            raise DataError(f"{len(listed)} {what} for {len(chosen)} images; give one of each.")
    path, number = Counter(chosen.paths).most_common(1)[0] if chosen.paths else ("", 0)
    if number > 1:
        raise DataError(f"{path!r} is named twice; a gallery knows its images by name.")
    return chosen


def _source(images: Any) -> LooseImages:
    if isinstance(images, str | os.PathLike) and Path(images).is_dir():
        place = Path(images)
        return prepared_images(place) if (place / MANIFEST).is_file() else in_folders([place])
    if is_dataset(images):
        names = [f"image {number}" for number in range(len(images))]
        return LooseImages(dataset_images(images), names, item_classes(images))
    listed = sequence_of(images)
    if all(isinstance(image, str | os.PathLike) for image in listed) and any(map(os.path.isdir, listed)):
        return in_folders([Path(image) for image in listed])
    return LooseImages(listed, [named(image, number) for number, image in enumerate(listed)], [""] * len(listed))


def in_folders(places: Sequence[Path], *, follow_links: bool = False) -> LooseImages:
    """Return the files at `places` and in their folders; the class is the folder below a place or a split folder.

    Links that lead out of a folder, or nowhere, are left out with a warning, unless they are to be followed.

    Raises:
        DataError: there is no such place, or a folder holds no image.
    """
    files: list[Path] = []
    classes: list[str] = []
    for place in places:
        if not place.is_dir():
            if not place.exists():
                raise DataError(f"{place} does not exist; name image files or folders with images.")
            files.append(place)
            classes.append("")
            continue
        folder = read_image_folder(place, follow_links=follow_links)
        for note in folder.notes:
            log.info("%s: %s", place, note)
        if folder.links_out:
            left, example = len(folder.links_out), place / folder.links_out[0]
            why = "lead out of %s, or nowhere, such as %s; copy the images, or `probmetric index --follow-links`."
            log.warning("left out: %d link(s) that " + why, left, place, example)
        files += [place / image.path for image in folder.images]
        classes += [_storable(image.class_name) for image in folder.images]
    _warn_of_contradictions(files, classes)
    return LooseImages(files, [_storable(str(file)) for file in files], classes)


def _warn_of_contradictions(images: Sequence[Any], class_names: Sequence[str]) -> None:
    """Warn where one file is listed under two classes, through links or another spelling of its path."""
    first: dict[str, str] = {}
    again = []
    for image, name in zip(images, class_names, strict=False):
        if isinstance(image, str | os.PathLike) and "\0" not in str(image):
            before = first.setdefault(os.path.realpath(image), name)
            if before != name:
                again.append((image, before, name))
    if again:
        what = "%d file(s) are listed under two classes, such as %s (%r and %r): the last one counts; remove the other."
        log.warning(what, len(again), *again[0])


def _storable(name: str) -> str:
    """Return a name that can be stored: bytes of a file's name that are not UTF-8 are written as escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def prepared_images(folder: Path, splits: Sequence[str] = ()) -> LooseImages:
    """Return the images of a prepared dataset: those of `splits`, or all."""
    verify_digest(folder)
    columns = load_columns(folder, ["path", "class_name", "split"])
    rows = np.flatnonzero(np.isin(columns["split"], list(splits))) if splits else np.arange(len(columns["path"]))
    if not len(rows):
        raise DataError(f"{folder} has no image in {', '.join(splits)}; its splits are train, val and test.")
    store = open_images(folder)
    images = _Lazy(len(rows), lambda number: store[int(rows[number])])
    paths, classes, parts = ([str(columns[name][row]) for row in rows] for name in ("path", "class_name", "split"))
    return LooseImages(images, paths, classes, parts)


def sequence_of(images: Any, ndim: int = 3) -> Sequence[Any]:
    """Return a sequence of images; one image, or numbers of at most `ndim` axes, becomes a sequence of one."""
    if getattr(getattr(images, "dtype", None), "kind", "") in ("O", "U"):  # paths, or images of any kind
        images = images.tolist()
    single = isinstance(images, str | bytes | Path) or isinstance(getattr(images, "mode", None), str)
    arrays = hasattr(images, "ndim")
    if single or (arrays and images.ndim <= ndim):
        return [images]
    if is_dataset(images):
        return dataset_images(images)
    if arrays or isinstance(images, Sequence):
        return images
    return list(images)


def named(image: Any, number: int) -> str:
    """Return the name of an image in answers and messages: its path, else its number."""
    return os.fspath(image) if isinstance(image, str | os.PathLike) else f"image {number}"


# ---- datasets ----------------------------------------------------------------------------------------------------


def is_dataset(images: Any) -> bool:
    """Tell whether `images` is a dataset with a length: neither an array nor a sequence of images."""
    parts = hasattr(images, "__getitem__") and hasattr(images, "__len__")
    return parts and not isinstance(images, Sequence | bytes | dict) and not hasattr(images, "ndim")


def dataset_images(dataset: Any) -> Sequence[Any]:
    """Return the images of a dataset, without its labels."""
    return _Lazy(len(dataset), lambda number: image_of(dataset[number]))


def image_of(item: Any) -> Any:
    """Return the image of an item: the item itself, or its first part."""
    return item[0] if isinstance(item, tuple | list) else item


def item_classes(dataset: Any, rows: Sequence[int] | None = None) -> list[str]:
    """Return the class of every item, or of those at `rows`, as text; "" for a dataset of images alone.

    Each item is read to get its label, except in datasets of PyTorch and torchvision, which list their labels. Names
    are the `classes` of the dataset that makes the labels, where it has that attribute.

    Raises:
        DataError: a label is neither a whole number nor a name.
    """
    from torch.utils.data import ConcatDataset, Subset

    rows = range(len(dataset)) if rows is None else rows
    reads = getattr(type(dataset), "__getitem__", None)
    if reads is Subset.__getitem__:
        return item_classes(dataset.dataset, [int(dataset.indices[row]) for row in rows])
    if reads is ConcatDataset.__getitem__:
        return _classes_of_parts(dataset.datasets, np.mod(rows, len(dataset)))
    labels = _listed_labels(dataset)
    if labels is None:
        with ThreadPoolExecutor(workers_available()) as pool:
            labels = list(pool.map(lambda row: _label_of(dataset[row]), rows))
    else:
        labels = [labels[row] for row in rows]
    classes = inspect.getattr_static(dataset, "classes", ())  # `classes` of an inner dataset may name other labels
    named_as = classes if isinstance(classes, list | tuple) and _keeps_labels(dataset) else ()
    return ["" if label is None else _class_name(label, named_as) for label in labels]


def _label_of(item: Any) -> Any:
    return item[1] if isinstance(item, tuple | list) and len(item) > 1 else None


def _classes_of_parts(parts: Sequence[Any], rows: np.ndarray) -> list[str]:
    """Return the class of the items at `rows` (n,) of datasets laid one after the other."""
    ends = np.cumsum([len(part) for part in parts])
    places = np.searchsorted(ends, rows, side="right")
    names = np.empty(len(rows), dtype=object)
    for number, part in enumerate(parts):
        inside = places == number
        names[inside] = item_classes(part, (rows[inside] - ends[number] + len(part)).tolist())
    return names.tolist()


def _listed_labels(dataset: Any) -> Any:
    """Return the labels that a dataset of PyTorch or torchvision lists; None where only its items hold them."""
    from torch.utils.data import TensorDataset

    reads = type(dataset).__getitem__
    if reads is TensorDataset.__getitem__:
        return dataset.tensors[1] if len(dataset.tensors) > 1 else None
    of_torchvision = (reads.__module__ or "").startswith("torchvision.datasets.")
    if not (of_torchvision and _keeps_labels(dataset) and len(dataset)):
        return None
    files = getattr(dataset, "samples", getattr(dataset, "imgs", None))  # labels of items are these, not `targets`
    listed = [file[1] for file in files] if files else getattr(dataset, "targets", getattr(dataset, "labels", 0.0))
    labels = np.asarray(listed)
    if labels.dtype.kind not in "iu" or labels.shape != (len(dataset),):
        return None
    first = dataset[0]
    return labels if isinstance(first, tuple) and len(first) == 2 and first[1] == labels[0] else None


def _keeps_labels(dataset: Any) -> bool:
    """Tell whether a dataset gives its labels as they are listed, untransformed."""
    joint = type(getattr(dataset, "transforms", None)).__name__
    return getattr(dataset, "target_transform", None) is None and joint in ("NoneType", "StandardTransform")


def _class_name(label: Any, classes: Sequence[str]) -> str:
    if math.prod(getattr(label, "shape", ())) != 1:
        raise DataError(
            f"an item has a label of shape {tuple(label.shape)}; an image has one class here, a whole number or a "
            "name. Turn a one-hot row into its number: label.argmax()."
        )
    plain = label.item() if hasattr(label, "item") else label
    if not isinstance(plain, str | int):
        raise DataError(f"an item has the label {plain!r}; labels are whole numbers or names of classes.")
    name = str(classes[plain]) if isinstance(plain, int) and 0 <= plain < len(classes) else str(plain)
    return unicodedata.normalize("NFC", name)


# ---- one image -----------------------------------------------------------------------------------------------------


def pixels_of(image: Any, mode: Mode, shorter_side: int | None = None) -> np.ndarray:
    """Return pixels (H, W, C) uint8 of one image in any form.

    Args:
        image: a path, the bytes of an image file, a PIL image, an array (H, W) or (H, W, C), or a tensor (C, H, W).
            Numbers are 0 to 255 in uint8, or 0 to 1 in floating point.
        mode: RGB (C = 3) or L (C = 1).
        shorter_side: reduce the shorter side to this.

    Raises:
        DataError: the image has none of these forms, or is damaged.
    """
    if isinstance(image, str | os.PathLike):
        return decode_file(Path(image), mode=mode, shorter_side=shorter_side).pixels
    if isinstance(image, bytes):
        return decode(image, "the image", mode=mode, shorter_side=shorter_side).pixels
    from PIL import Image

    if not isinstance(image, Image.Image):
        image = Image.fromarray(_bytes_of(image))
    return decoded(image, mode=mode, shorter_side=shorter_side).pixels


def _bytes_of(image: Any) -> np.ndarray:
    """Return an array or tensor as uint8 (H, W), (H, W, 3) or (H, W, 4)."""
    if hasattr(image, "detach"):
        pixels = (image.float() if image.is_floating_point() else image).detach().cpu().numpy()
        pixels = np.moveaxis(pixels, 0, -1) if pixels.ndim == 3 else pixels
    else:
        pixels = np.asarray(image)
    pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    if pixels.size == 0 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))):
        raise DataError(
            f"an image of shape {tuple(np.shape(image))}, expected an array (H, W) or (H, W, C), a tensor (C, H, W), "
            "with 1, 3 or 4 channels."
        )
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    if pixels.dtype.kind == "f" and np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1:
        return np.rint(pixels * 255).astype(np.uint8)
    span = f"{pixels.min()} to {pixels.max()}" if pixels.dtype.kind in "fiub" else "no numbers"
    raise DataError(f"an image of type {pixels.dtype} with values {span}, expected uint8, or floating point in 0 to 1.")


def _tensor(image: Any, expected: tuple[int, ...]) -> Tensor:
    """Return a tensor as float32 on the CPU; it must have the input shape that the model was trained with."""
    import torch

    shape = tuple(getattr(image, "shape", ()))
    if shape != expected:
        form = f"shape {shape}" if shape else f"type {type(image).__name__}"
        raise DataError(f"an input of {form}; the model was trained on tensors of shape {expected}.")
    return torch.as_tensor(image).detach().cpu().float()


def problem_list(problems: Sequence[tuple[str, str]], total: int, advice: str) -> DataError:
    """Make one error for all images that cannot be used: (name, reason) of each, out of `total` images."""
    head = f"{len(problems)} of {total} images cannot be used; {advice}."
    return listed_problems(head, [f"{name}: {reason}" for name, reason in problems])


def named_problems(images: Sequence[Any], unreadable: Mapping[int, DataError]) -> list[tuple[str, str]]:
    """Return name and reason of each image that cannot be read, without the advice for a whole dataset."""
    names = {row: named(images[row], row) for row in unreadable}
    return [(name, str(unreadable[row]).removeprefix(f"{name} ").partition("; ")[0]) for row, name in names.items()]
