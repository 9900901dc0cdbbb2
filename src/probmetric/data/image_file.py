"""images.bin: every image once, in manifest order; decoded by several processes, in bounded memory.

Processes decode 64 images at a time into segment files beside it, the parent appends these in order; at most two
segments per process wait. The bytes do not depend on the number of processes.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from probmetric.data.manifest import DataError, text

if TYPE_CHECKING:
    from tqdm import tqdm

CHUNK = 64
TOO_MANY = 1000  # images that cannot be read: something else is wrong


class Stored(NamedTuple):
    """An image as it goes into images.bin.

    Attributes:
        data: its bytes, (H, W, C) uint8 pixels or (L,) uint8 of an encoded file.
        shape: (H, W, C) of the decoded image.
        remarks: decisions taken while decoding.
        mark: what it looks like (`data.near`), or nothing.
    """

    data: np.ndarray
    shape: tuple[int, int, int]
    remarks: tuple[str, ...] = ()
    mark: bytes = b""


ImageOf = Callable[[int], "Stored | np.ndarray"]
"""row -> image; one with a method `part(rows: range) -> ImageOf` gives a process the reader of its rows alone."""


class Placed(NamedTuple):
    """Where the N images lie in images.bin.

    Attributes:
        columns: manifest columns sha256, offset, height, width, channels (N,), and length where images are encoded.
        notes: remarks for summary.json.
        sha256: of images.bin.
        marks: what the images look like (N, 32) uint8; zeros where nobody looked.
        unreadable: row -> what is wrong with it; these images are not stored.
    """

    columns: dict[str, np.ndarray]
    notes: list[str]
    sha256: str
    marks: np.ndarray
    unreadable: dict[int, str]


class _Entry(NamedTuple):
    """What is known of one image beside its bytes: (length, H, W, C), digest, remarks, mark, what is wrong with it."""

    numbers: tuple[int, int, int, int] = (0, 0, 0, 0)
    sha256: bytes = bytes(32)
    remarks: tuple[str, ...] = ()
    mark: bytes = bytes(32)
    problem: str = ""


def workers_available() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_images(path: Path, read: ImageOf, names: np.ndarray, *, workers: int = 1, title: str = "") -> Placed:
    """Write every image once to the new file `path`.

    Args:
        path: images.bin.
        read: row -> image; picklable if `workers` > 1.
        names: path of every image (N,), for messages.
        workers: processes that decode.
        title: shown by a progress bar; "" for none.
    """
    whole, collected = hashlib.sha256(), _Collected(len(names))
    with progress_bar(title, bool(title), total=len(names), unit="image") as bar, path.open("xb") as images:
        for segment, entries in _segments(path.parent, read, names, workers):
            with segment.open("rb") as part:
                while block := part.read(2**20):
                    whole.update(block)
                    images.write(block)
            segment.unlink()
            collected.add(entries)
            bar.update(len(entries))
            if len(collected.unreadable) > TOO_MANY:
                break
    return collected.placed(names, whole.hexdigest())


def progress_bar(title: str, shown: bool, **options: Any) -> tqdm[Any]:
    """Make a progress bar on standard error; in a log file, a line every half minute for what takes longer."""
    from tqdm import tqdm

    quiet: dict[str, Any] = {} if sys.stderr.isatty() else {"mininterval": 30, "delay": 30, "ascii": True}
    return tqdm(desc=title, disable=not shown, **options, **quiet)


class _Collected:
    """Entries of N images as arrays: with a million images each Python object counts."""

    def __init__(self, count: int) -> None:
        self.done = 0
        self._numbers = np.zeros((count, 4), dtype=np.int32)
        self._sha256 = np.zeros((count, 32), dtype=np.uint8)
        self._marks = np.zeros((count, 32), dtype=np.uint8)
        self.unreadable: dict[int, str] = {}
        self._remarks: dict[str, tuple[int, int]] = {}

    def add(self, entries: list[_Entry]) -> None:
        """Add the entries of the next images."""
        for row, entry in enumerate(entries, start=self.done):
            self._numbers[row] = entry.numbers
            self._sha256[row] = np.frombuffer(entry.sha256, dtype=np.uint8)
            self._marks[row] = np.frombuffer(entry.mark or bytes(32), dtype=np.uint8)
            if entry.problem:
                self.unreadable[row] = entry.problem
            for remark in entry.remarks:
                number, first = self._remarks.get(remark, (0, row))
                self._remarks[remark] = (number + 1, first)
        self.done += len(entries)

    def placed(self, names: np.ndarray, sha256: str) -> Placed:
        """Return what is known of the images, called `names` (N,), in a file with the digest `sha256`."""
        length, height, width, channels = self._numbers.T
        columns = {"sha256": self._sha256.view("V32").reshape(-1), "offset": np.cumsum(length, dtype=np.int64) - length}
        columns |= {"height": height.copy(), "width": width.copy(), "channels": channels.copy()}
        if not np.array_equal(length, height * width * channels):
            columns["length"] = length.astype(np.int64)
        remarks = sorted(self._remarks.items())
        notes = [f"{number} image(s): {remark} (e.g. {text(names[row])})" for remark, (number, row) in remarks]
        return Placed(columns, notes, sha256, self._marks, self.unreadable)


def _segments(folder: Path, read: ImageOf, names: np.ndarray, workers: int) -> Iterator[tuple[Path, list[_Entry]]]:
    """Yield segment files in order, with the entries of their images."""
    starts = range(0, len(names), CHUNK)
    jobs = ((folder / f"segment-{start}.bin", range(start, min(start + CHUNK, len(names)))) for start in starts)
    if workers == 1 or len(starts) < 2:
        for path, rows in jobs:
            yield path, _write_segment(path, read, rows, names[rows.start : rows.stop])
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        submitted = ((path, pool.submit(_write_segment, path, *_portion(read, rows, names))) for path, rows in jobs)
        try:
            queue = collections.deque(itertools.islice(submitted, 2 * workers))
            while queue:
                path, future = queue.popleft()
                yield path, future.result()
                queue.extend(itertools.islice(submitted, 1))
        except BrokenProcessPool as error:
            raise DataError(
                f"a process decoding images for {folder} was killed (out of memory?); free memory, then run the same "
                "command again."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _portion(read: ImageOf, rows: range, names: np.ndarray) -> tuple[ImageOf, range, np.ndarray]:
    """Return what a process needs to read `rows`: not the paths of all images."""
    part: Callable[[range], ImageOf] | None = getattr(read, "part", None)
    names = names[rows.start : rows.stop]
    return (part(rows), range(len(rows)), names) if part else (read, rows, names)


def _write_segment(path: Path, read: ImageOf, rows: range, names: np.ndarray) -> list[_Entry]:
    """Read the images `rows`, called `names`, into a segment file; return their entries."""
    entries = []
    with path.open("wb") as file:
        for row, name in zip(rows, names, strict=True):
            try:
                image = read(row)
            except DataError as error:
                entries.append(_Entry(problem=str(error)))
                continue
            stored = image if isinstance(image, Stored) else Stored(image, image.shape)
            if stored.data.dtype != np.uint8 or len(stored.shape) != 3 or not all(stored.shape):
                raise DataError(f"{text(name)} is {stored.data.dtype} {stored.shape}; expected uint8 (H, W, C).")
            data = np.ascontiguousarray(stored.data).data
            file.write(data)
            height, width, channels = map(int, stored.shape)
            digest = hashlib.sha256(data).digest()
            entries.append(_Entry((data.nbytes, height, width, channels), digest, stored.remarks, stored.mark))
    return entries
