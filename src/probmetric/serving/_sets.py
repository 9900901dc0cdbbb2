"""A `torch.utils.data.Dataset` as a sequence of images and their classes; its items are images or (image, label)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from probmetric.errors import ServingError


class Lazy(Sequence[Any]):
    """Images that are read when they are asked for."""

    def __init__(self, count: int, image: Callable[[int], Any]) -> None:
        self._count, self._image = count, image

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._image(index)


def is_set(images: Any) -> bool:
    """Whether it is a dataset with a length: neither an array nor a sequence of images."""
    parts = hasattr(images, "__getitem__") and hasattr(images, "__len__")
    return parts and not isinstance(images, Sequence | bytes | dict) and not hasattr(images, "ndim")


def images_of(dataset: Any) -> Lazy:
    """The images of a dataset, without its labels."""
    return Lazy(len(dataset), lambda number: image_of(dataset[number]))


def image_of(item: Any) -> Any:
    """The image of an item: itself, or its first part."""
    return item[0] if isinstance(item, tuple | list) else item


def names_of(dataset: Any) -> list[str]:
    """Class of every item as text (N,), "" for a dataset of images alone.

    Read from `targets` or `labels` where the dataset has them, as torchvision's do, otherwise from every item.

    Raises:
        ServingError: a label that is neither a whole number nor a name.
    """
    known = _targets(dataset)
    if known is None:
        first = dataset[0] if len(dataset) else None
        if not (isinstance(first, tuple | list) and len(first) > 1):
            return [""] * len(dataset)
        known = [dataset[number][1] for number in range(len(dataset))]
    classes = _classes(dataset)
    return [_name(label, classes) for label in known]


def _targets(dataset: Any) -> list[Any] | None:
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and indices is not None:  # torch's Subset
        known = _targets(inner)
        return None if known is None else [known[int(number)] for number in indices]
    found = next((getattr(dataset, name) for name in ("targets", "labels") if hasattr(dataset, name)), None)
    return list(found) if found is not None and hasattr(found, "__len__") and len(found) == len(dataset) else None


def _classes(dataset: Any) -> Sequence[str]:
    found = getattr(getattr(dataset, "dataset", dataset), "classes", ())
    return found if isinstance(found, list | tuple) else ()


def _name(label: Any, classes: Sequence[str]) -> str:
    plain = label.item() if hasattr(label, "item") else label
    if not isinstance(plain, str | int):
        raise ServingError(f"an item has the label {plain!r}; labels are whole numbers or names of classes.")
    return str(classes[plain]) if isinstance(plain, int) and 0 <= plain < len(classes) else str(plain)


def sequence_of(images: Any, ndim: int = 3) -> Sequence[Any]:
    """A sequence of images; one image, an array of at most `ndim` axes, is a sequence of one."""
    single = isinstance(images, str | bytes | Path) or isinstance(getattr(images, "mode", None), str)
    arrays = hasattr(images, "ndim")
    if single or (arrays and images.ndim <= ndim):
        return [images]
    if is_set(images):
        return images_of(images)
    if arrays or isinstance(images, Sequence):
        return images
    return list(images)
