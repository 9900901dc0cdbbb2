"""Images in any form, as a network's input.

A path, bytes of a file, an image of PIL's, an array (H, W) or (H, W, C), a tensor (C, H, W): all are decoded with the
decisions of preparation (`data.decode`), then seen through the model's view, so that a picture has one embedding
however it is handed over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.data.decode import Mode, decode, decode_file, decoded
from probmetric.data.image_folder import ImageFolder, read_image_folder
from probmetric.data.manifest import DataError

if TYPE_CHECKING:
    import torch

    from probmetric.data.store import ImageStore
    from probmetric.data.views import View

log = logging.getLogger(__name__)
SHOWN = 50


def reason_of(error: DataError, name: str) -> str:
    """What is wrong with the image `name`, without repeating its name and what to do about a whole dataset."""
    return str(error).removeprefix(f"{name} ").partition("; ")[0]


def named(image: Any, number: int) -> str:
    """What an image is called in answers and messages: its path, else its number."""
    return os.fspath(image) if isinstance(image, str | os.PathLike) else f"image {number}"


def image_files(place: str | Path) -> list[Path]:
    """The file `place`, or the image files below the folder `place`, in order.

    Links that lead out of it, or nowhere, are left out with a warning.

    Raises:
        DataError: there is no such place, or it holds no image.
    """
    place = Path(place)
    if place.is_dir():
        folder = image_folder(place)
        return [place / image.path for image in folder.images]
    if not place.exists():
        raise DataError(f"{place} does not exist; name image files or folders with images.")
    return [place]


def image_folder(place: Path) -> ImageFolder:
    """Read a folder with images; links that lead out of it, or nowhere, are left out with a warning."""
    folder = read_image_folder(place)
    if folder.links_out:
        log.warning(
            "left out: %d link(s) that lead out of %s, or nowhere, such as %s; copy the images.",
            len(folder.links_out),
            place,
            place / folder.links_out[0],
        )
    return folder


def pixels_of(image: Any, mode: Mode, shorter_side: int | None = None) -> np.ndarray:
    """Pixels (H, W, C) uint8 of one image in any form.

    Args:
        image: a path, the bytes of an image file, an image of PIL's, an array (H, W) or (H, W, C), a tensor (C, H, W).
            Numbers are 0 to 255 in uint8, or 0 to 1 in floating point.
        mode: RGB (C = 3) or L (C = 1).
        shorter_side: reduce the shorter side to this.

    Raises:
        DataError: it is none of these, or damaged.
    """
    if isinstance(image, str | os.PathLike):
        _check_file(Path(image))
        return decode_file(Path(image), mode=mode, shorter_side=shorter_side).pixels
    if isinstance(image, bytes):
        return decode(image, "the image", mode=mode, shorter_side=shorter_side).pixels
    from PIL import Image

    if not isinstance(image, Image.Image):
        image = Image.fromarray(_bytes_of(image))
    return decoded(image, mode=mode, shorter_side=shorter_side).pixels


def _check_file(path: Path) -> None:
    """Refuse a pipe or device, from which one could read for ever."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"{path} is no regular file; name image files.")


def _bytes_of(image: Any) -> np.ndarray:
    """An array or tensor as uint8 (H, W), (H, W, 3) or (H, W, 4)."""
    if hasattr(image, "detach"):
        found = image.detach().cpu().numpy()
        found = np.moveaxis(found, 0, -1) if found.ndim == 3 else found
    else:
        found = np.asarray(image)
    found = found[..., 0] if found.ndim == 3 and found.shape[2] == 1 else found
    if found.size == 0 or not (found.ndim == 2 or (found.ndim == 3 and found.shape[2] in (3, 4))):
        raise DataError(
            f"an image of shape {tuple(np.shape(image))}, expected an array (H, W) or (H, W, C), a tensor (C, H, W), "
            "with 1, 3 or 4 channels."
        )
    if found.dtype == np.uint8:
        return np.ascontiguousarray(found)
    if found.dtype.kind == "f" and np.isfinite(found).all() and found.min() >= 0 and found.max() <= 1:
        return np.rint(found * 255).astype(np.uint8)
    span = f"{found.min()} to {found.max()}" if found.dtype.kind in "fiub" else "no numbers"
    raise DataError(f"an image of type {found.dtype} with values {span}, expected uint8, or floating point in 0 to 1.")


class _One:
    """One image as a store of pixels."""

    shape = None

    def __init__(self, pixels: np.ndarray) -> None:
        self._pixels = pixels

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self._pixels


@dataclass(frozen=True)
class Eye:
    """How a model sees an image.

    Attributes:
        view: the evaluation view.
        shape: channels C and side S of the network's input.
        shorter_side: to which preparation reduced images; 0: not.
    """

    view: View
    shape: tuple[int, int]
    shorter_side: int = 0

    @property
    def ndim(self) -> int:
        """Most axes an array or tensor has that is one image."""
        return 3

    @property
    def mode(self) -> Mode:
        """RGB or L."""
        return "L" if self.shape[0] == 1 else "RGB"

    def load(self, image: Any) -> torch.Tensor:
        """Network input (1, C, S, S) uint8 of one image, before normalisation."""
        from typing import cast

        from probmetric.data.fitted import load_fitted

        store = cast("ImageStore", _One(pixels_of(image, self.mode, self.shorter_side or None)))
        return load_fitted(store, np.zeros(1, dtype=np.int64), self.view, shape=self.shape)

    def try_load(self, image: Any) -> torch.Tensor | DataError:
        """As `load`; what is wrong with the image in place of an exception."""
        try:
            return self.load(image)
        except DataError as error:
            return error


def problem_list(problems: Sequence[tuple[str, str]], total: int, advice: str) -> DataError:
    """One error for all images that cannot be used: (name, reason) of each of them, of `total`."""
    shown = [f"  {name}: {reason}" for name, reason in problems[:SHOWN]]
    more = [f"  and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return DataError("\n".join([f"{len(problems)} of {total} images cannot be used; {advice}.", *shown, *more]))
