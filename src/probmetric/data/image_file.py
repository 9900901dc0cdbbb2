"""Write images.bin: every image once, in manifest order; decoded by several processes, in bounded memory.

Each process decodes 64 images at a time into a segment file beside images.bin. The parent process appends the segments
in order; at most two segments per process wait. The bytes do not depend on the number of processes.
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
TOO_MANY = 1000  # with so many images unreadable, something else is wrong


class Stored(NamedTuple):
    """An image as it goes into images.bin.

    Attributes:
        data: its bytes, (H, W, C) uint8 pixels or (L,) uint8 of an encoded file.
        shape: (H, W, C) of the decoded image.
        remarks: decisions taken while decoding.
        mark: its mark, by which similar images are found (`data.near`); may be empty.
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
        marks: marks of the images (N, 32) uint8, see `data.near`; zeros where none was computed.
        unreadable: row -> what is wrong with the image; such images are not stored.
    """

    columns: dict[str, np.ndarray]
    notes: list[str]
    sha256: str
    marks: np.ndarray
    unreadable: dict[int, str]


ENTRY = np.dtype(
    [(name, np.int32) for name in ("length", "height", "width", "channels")]
    + [("sha256", np.void, 32), ("mark", np.uint8, 32)]  # type: ignore[list-item]
)


class _Segment(NamedTuple):
    """What is known of the n images of a segment file.

    Attributes:
        entries: of `ENTRY` (n,); zeros for images that cannot be read.
        problems: row -> what is wrong with it.
        remarks: (row, decision taken while decoding).
    """

    entries: np.ndarray
    problems: dict[int, str]
    remarks: list[tuple[int, str]]


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
        title: title of the progress bar; "" shows no bar.
    """
    whole, done = hashlib.sha256(), 0
    columns = {str(name): np.zeros(len(names), dtype=ENTRY[name]) for name in ENTRY.names or ()}
    unreadable: dict[int, str] = {}
    remarks: dict[str, tuple[int, int]] = {}
    with progress_bar(title, bool(title), total=len(names), unit="image") as bar, path.open("xb") as images:
        for file, segment in _segments(path.parent, read, names, workers):
            with file.open("rb") as part:
                while block := part.read(2**20):
                    whole.update(block)
                    images.write(block)
            file.unlink()
            count = len(segment.entries)
            for name, values in columns.items():
                if segment.entries[name].any():  # memory that is not written to is not taken
                    values[done : done + count] = segment.entries[name]
            unreadable |= {done + row: problem for row, problem in segment.problems.items()}
            for row, remark in segment.remarks:
                number, first = remarks.get(remark, (0, done + row))
                remarks[remark] = (number + 1, first)
            done += count
            bar.update(count)
            if len(unreadable) > TOO_MANY:
                break
    length, marks = columns.pop("length").astype(np.int64), columns.pop("mark")
    columns["offset"] = np.cumsum(length) - length
    if not np.array_equal(length, columns["height"] * columns["width"] * columns["channels"]):
        columns["length"] = length
    listed = sorted(remarks.items())
    notes = [f"{number} image(s): {remark} (e.g. {text(names[row])})" for remark, (number, row) in listed]
    return Placed(columns, notes, whole.hexdigest(), marks, unreadable)


def progress_bar(title: str, shown: bool, **options: Any) -> tqdm[Any]:
    """Make a progress bar on standard error; in a log file it prints a line every half minute."""
    from tqdm import tqdm

    quiet: dict[str, Any] = {} if sys.stderr.isatty() else {"mininterval": 30, "delay": 30, "ascii": True}
    return tqdm(desc=title, disable=not shown, **options, **quiet)


def _segments(folder: Path, read: ImageOf, names: np.ndarray, workers: int) -> Iterator[tuple[Path, _Segment]]:
    """Yield segment files in order, each with the facts about its images."""
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
                "command again. A script of yours must call from below `if __name__ == '__main__':`."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _portion(read: ImageOf, rows: range, names: np.ndarray) -> tuple[ImageOf, range, np.ndarray]:
    """Return a reader of `rows` alone, so that a process need not receive the paths of all images."""
    part: Callable[[range], ImageOf] | None = getattr(read, "part", None)
    names = names[rows.start : rows.stop]
    return (part(rows), range(len(rows)), names) if part else (read, rows, names)


def _write_segment(path: Path, read: ImageOf, rows: range, names: np.ndarray) -> _Segment:
    """Read the images `rows`, called `names`, into a segment file."""
    segment = _Segment(np.zeros(len(rows), dtype=ENTRY), {}, [])
    with path.open("wb") as file:
        for place, (row, name) in enumerate(zip(rows, names, strict=True)):
            try:
                image = read(row)
            except DataError as error:
                segment.problems[place] = str(error)
                continue
            stored = image if isinstance(image, Stored) else Stored(image, image.shape)
            if stored.data.dtype != np.uint8 or len(stored.shape) != 3 or not all(stored.shape):
                raise DataError(f"{text(name)} is {stored.data.dtype} {stored.shape}; expected uint8 (H, W, C).")
            data = np.ascontiguousarray(stored.data).data
            file.write(data)
            mark = np.frombuffer(stored.mark or bytes(32), dtype=np.uint8)
            segment.entries[place] = (data.nbytes, *stored.shape, hashlib.sha256(data).digest(), mark)
            segment.remarks.extend((place, remark) for remark in stored.remarks)
    return segment
