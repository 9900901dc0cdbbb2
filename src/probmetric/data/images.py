"""Read images in order, wherever they are stored, as an encoder's input.

    ImageSource    labels, length, `load(rows)`: the interface that all code reading images uses
    PreparedImages rows of a prepared folder           `data.loose.LooseImages`  a dataset of one's own, files, arrays
    Eye            pixels -> input of an encoder
    batches        ImageSource + Eye -> batches, loaded ahead by threads

Images of one dataset may be read by an encoder trained on another (OOD sets differ in channels and size):

    grey, the encoder reads colour    the channel is repeated
    colour, the encoder reads grey    ITU-R 601 luma, 0.299 R + 0.587 G + 0.114 B, rounded
    another size                      photographs: the encoder's own evaluation view, which ends at its size;
                                      small images: shorter side resized (bilinear, antialiased), central crop

Preparing the dataset for that encoder would give the same, up to rounding. Conversion can make an OOD set easier to
recognise (enlarged images are smooth), so results name the sets they used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from probmetric.data.decode import Mode
from probmetric.data.image_file import workers_available
from probmetric.data.manifest import DataError, load_columns, verify_digest
from probmetric.data.store import ImageStore, open_images
from probmetric.data.views import View, create_view
from probmetric.data.views._base import Images, RawTensors
from probmetric.io import sha256_file

BATCH, AHEAD = 256, 4
LUMA = (0.299, 0.587, 0.114)

T = TypeVar("T")
R = TypeVar("R")


class ImageSource(Protocol):
    """Images in order."""

    @property
    def labels(self) -> np.ndarray:
        """Class of every image (N,) int64."""
        ...

    @property
    def index(self) -> np.ndarray:
        """Number of every image in its dataset (N,), which seeds random draws and appears in messages."""
        ...

    def __len__(self) -> int: ...

    def load(self, rows: np.ndarray) -> Images:
        """Return the images at the positions `rows` (B,), each in 0..N-1."""
        ...


@dataclass(frozen=True)
class PreparedImages:
    """Images of a prepared folder.

    Attributes:
        store: the pixels.
        index: manifest rows (N,).
        labels: manifest labels (N,).
        digest: SHA-256 that names the dataset; "" where it is not needed.
    """

    store: ImageStore
    index: np.ndarray
    labels: np.ndarray
    digest: str = ""

    @classmethod
    def of_split(cls, folder: str | Path, split: str) -> PreparedImages:
        """Check that the files of `folder` are the prepared ones, and open its `split` (train, val or test)."""
        verify_digest(folder)
        columns = load_columns(folder, ["label", "split"])
        rows = np.flatnonzero(columns["split"] == split)
        return cls(open_images(folder), rows, columns["label"][rows], sha256_file(Path(folder) / "digest"))

    def __len__(self) -> int:
        return len(self.index)

    def load(self, rows: np.ndarray) -> Images:
        """Return the images at the positions `rows` (B,)."""
        return self.store.load(self.index[rows])


@dataclass(frozen=True)
class Eye:
    """How an encoder sees an image.

    Attributes:
        view: evaluation view of the dataset the encoder was trained on.
        shape: channels C and side S of the encoder's input; other images are converted.
        shorter_side: images that were not prepared are first reduced to this, as preparation did; 0: not reduced.
    """

    view: View
    shape: tuple[int, int]
    shorter_side: int = 0

    @property
    def tensor(self) -> tuple[int, ...]:
        """Shape of an input that is a tensor and is not converted; () where inputs are images."""
        return self.view.shape if isinstance(self.view, RawTensors) else ()

    @property
    def ndim(self) -> int:
        """Most axes an array or tensor has that is one input."""
        return len(self.tensor) or 3

    @property
    def mode(self) -> Mode:
        """RGB or L."""
        return "L" if self.shape[0] == 1 else "RGB"

    def load(self, images: Images) -> Tensor:
        """Return images as (B, C, S, S) uint8 on the CPU, before normalisation."""
        channels, side = self.shape
        view = self.view
        if view.side is None and not (isinstance(images, np.ndarray) and images.shape[1:3] == (side, side)):
            view = create_view("photos", size=side, resize=side)
        return with_channels(view.load_plain(images), channels)


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Convert images (B, 1 or 3, H, W) uint8 to 1 or 3 channels."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1)
    weights = torch.tensor(LUMA).view(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True).round_().to(torch.uint8)


def batches(
    source: ImageSource,
    eye: Eye,
    device: torch.device | str = "cpu",
    *,
    size: int = BATCH,
    first: int = 0,
    step: int = 1,
) -> Iterator[Tensor]:
    """Yield the images as an encoder's input (B, C, S, S) float32, loaded ahead by threads.

    Args:
        source: the images; a source without images gives one empty batch.
        eye: how the encoder sees them.
        device: where the batches go.
        size: B.
        first: number of the first batch.
        step: only every `step`-th batch is read, so that processes can share a source.
    """
    device = torch.device(device)
    numbers = np.arange(len(source))
    starts = range(first * size, max(len(source), 1), step * size)

    def load(start: int) -> Tensor:
        rows = numbers[start : start + size]
        if not len(rows):
            return torch.empty((0, eye.shape[0], eye.shape[1], eye.shape[1]), dtype=torch.uint8, device=device)
        return to_device(eye.load(source.load(rows)), device)

    for images in ahead_of(load, starts, loading_threads(device), device):
        yield eye.view.normalise(images)


def readable_batches(
    source: ImageSource, eye: Eye, device: torch.device | str, problems: dict[int, DataError]
) -> Iterator[Tensor]:
    """Yield the readable images like `batches`; the reason why another cannot be read goes into `problems`, by row."""
    device = torch.device(device)

    def load(row: int) -> Tensor | DataError:
        try:
            return eye.load(source.load(np.array([row])))
        except DataError as error:
            return error

    threads = loading_threads(device) if len(source) > 1 else 0
    loaded = enumerate(ahead_of(load, range(len(source)), threads, device))
    for _ in range(0, len(source), BATCH):
        part = dict(islice(loaded, BATCH))
        problems |= {row: error for row, error in part.items() if isinstance(error, DataError)}
        images = [image for image in part.values() if isinstance(image, Tensor)]
        if images:
            yield eye.view.normalise(torch.cat(images).to(device))


def loading_threads(device: torch.device) -> int:
    """Return the number of loading threads: all of the job's with a CUDA device, a few where the CPU computes."""
    spare = torch.get_num_threads() if device.type == "cuda" else 1
    return max(min(workers_available(), AHEAD), spare)


def ahead_of(load: Callable[[T], R], items: Sequence[T], threads: int, device: torch.device) -> Iterator[R]:
    """Yield `map(load, items)` in order; `threads` threads compute a few items ahead, 0 threads none.

    Each thread makes the CUDA `device` its current one: pinning memory elsewhere would open a context on device 0.
    """
    if not threads:
        yield from map(load, items)
        return
    prepare = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
    with ThreadPoolExecutor(threads, thread_name_prefix="images", initializer=prepare) as pool:
        rest = iter(items)
        waiting = deque(pool.submit(load, item) for item in islice(rest, max(AHEAD, threads + 1)))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(load, item) for item in islice(rest, 1))
            yield result


def to_device(images: Tensor, device: torch.device) -> Tensor:
    """Copy images (B, C, H, W) to the device while it computes."""
    return images.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else images
