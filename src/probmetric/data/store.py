"""Read the pixels of a prepared dataset through a memory map."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from probmetric.data.decode import Mode, decode, decode_jpeg
from probmetric.data.manifest import IMAGES, DataError, read_columns, read_table, rebuild_advice, refusing
from probmetric.io import check_readable

if TYPE_CHECKING:
    import pyarrow as pa

    from probmetric.data.views._base import Images

_PLACE = ("offset", "height", "width", "channels")
_LENGTH = "length"
_MODES: dict[int, Mode] = {1: "L", 3: "RGB"}


class ImageStore:
    """The images of a prepared dataset, in manifest order; pixels are read from disk when they are needed.

    Attributes:
        path: the images.bin that holds the pixels; for a variant, that of the original dataset.
        shape: (H, W, C) if all images share it, else None.
        encoded: whether the file holds encoded images (JPEG, PNG), decoded when they are read.
    """

    def __init__(self, folder: str | Path, *, splits: Collection[str] | None = None) -> None:
        """Map the pixels of the prepared `folder`; raise an error if the file does not fit the manifest.

        Args:
            folder: the prepared folder.
            splits: only images of these splits may be read; None: all.
        """
        folder = Path(folder)
        columns, metadata = read_columns(folder, (*_PLACE, "split"), optional=(_LENGTH,))
        self.path = folder / metadata.get("images", ".") / IMAGES
        self._folder = folder
        self._offset = columns["offset"]
        self._size = np.stack([columns[name] for name in _PLACE[1:]], axis=1)
        self.encoded = _LENGTH in columns
        self._length = columns[_LENGTH] if self.encoded else self._size.prod(axis=1)
        self._map = _map_file(self.path)
        split = columns["split"]
        self._withheld = np.zeros(len(split), dtype=bool) if splits is None else ~np.isin(split, list(splits))
        self._check_bounds()
        uniform = len(self._size) > 0 and bool((self._size == self._size[0]).all())
        self.shape: tuple[int, int, int] | None = tuple(self._size[0].tolist()) if uniform else None
        self._dense = self._as_dense()

    @functools.cached_property
    def _names(self) -> pa.ChunkedArray:
        """Read the path of every image when it is needed, since it is the longest column."""
        return read_table(self._folder, ["path"])[0].column("path")

    def _check_rows(self, rows: np.ndarray) -> None:
        """Raise an error for rows that are not in the manifest, or belong to a split that may not be read."""
        outside = (rows < 0) | (rows >= len(self))
        if outside.any():
            raise IndexError(f"image index {rows[outside][0]} is outside 0..{len(self) - 1} of {self.path}.")
        if self._withheld[rows].any():
            row = int(rows[self._withheld[rows]][0])
            raise DataError(
                f"{self.path}: image {row} ({self._names[row]}) is of a split that this step must not see; what is "
                "chosen (epochs, posteriors, temperatures, settings) is chosen without test images."
            )

    def _check_bounds(self) -> None:
        end = self._offset + self._length
        bad = np.flatnonzero((self._offset < 0) | (end > len(self._map)) | (self._size <= 0).any(axis=1))
        if len(bad):
            row = int(bad[0])
            raise DataError(
                f"{self.path}: image {row} ({self._names[row]}) should lie at bytes {self._offset[row]:,} to "
                f"{end[row]:,}, the file has {len(self._map):,}; {len(bad)} image(s) are out of reach. "
                f"The file is truncated or the manifest was edited: {rebuild_advice(self.path.parent)}."
            )

    def _as_dense(self) -> np.ndarray | None:
        """Return all images as (N, H, W, C) where they are equal in size and lie one after the other, else None."""
        if self.shape is None or self.encoded:
            return None
        step = int(np.prod(self.shape))
        if not (self._offset == np.arange(len(self)) * step).all():
            return None
        return self._map[: len(self) * step].reshape(len(self), *self.shape)

    def __len__(self) -> int:
        return len(self._offset)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return pixels (H, W, C) uint8 of the image in manifest row `index`: a read-only view of the file."""
        data = self.stored(index)
        size = self._size[index]
        if not self.encoded:
            return data.reshape(size)
        pixels = decode_jpeg(data) if size[2] == 3 else None
        if pixels is not None:
            return pixels
        name = f"{self.path}: image {index} ({self._names[index]})"
        return decode(data.tobytes(), name, mode=_MODES[int(size[2])]).pixels

    def stored(self, index: int) -> np.ndarray:
        """Return bytes (L,) uint8 of image `index` as they lie in the file: pixels, or an encoded image."""
        self._check_rows(np.array([index]))
        start = int(self._offset[index])
        return self._map[start : start + int(self._length[index])]

    def load(self, rows: np.ndarray) -> Images:
        """Return pixels of the manifest rows (B,): (B, H, W, C) where all images share a size, else one by one.

        Raises:
            IndexError: a row is not in the manifest.
            DataError: an image belongs to a split that may not be read.
        """
        self._check_rows(rows)
        if self._dense is not None:
            return self._dense[rows]
        images = (self[int(row)] for row in rows)
        return images if self.shape is None or not len(rows) else np.stack(list(images))


open_images = ImageStore
"""Open the pixels of a prepared dataset (for a label-noise variant: those of the dataset it derives from)."""


def _map_file(path: Path) -> np.ndarray:
    check_readable(path)
    if not path.exists():
        raise DataError(f"{path} is missing; {rebuild_advice(path.parent)}.")
    with refusing(f"{path} cannot be read", "check its permissions and the disk", OSError):
        return np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, dtype=np.uint8)
