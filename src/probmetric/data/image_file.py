"""images.bin: every image once, in manifest order; built in parallel, resumable, in bounded memory.

Workers decode chunks of 64 images into segment files; the parent appends the segments in order and logs each in
progress.jsonl, one line per chunk. After an interruption the log says how many bytes of images.bin are good; the rest
is cut off and work goes on there. The bytes do not depend on the number of workers.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from probmetric.data.manifest import IMAGES, DataError, text
from probmetric.data.version import FORMAT
from probmetric.io import digest_of, write_text

if TYPE_CHECKING:
    from tqdm import tqdm

CHUNK = 64
TOO_MANY = 1000  # images that cannot be read: something else is wrong
LOG, KEY = "progress.jsonl", "request.txt"
LAYOUT = 2  # of the lines of the log
NO_DIGEST = "0" * 64


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


@runtime_checkable
class Divisible(Protocol):
    """A reader that knows all paths: a process that reads some rows is sent those."""

    def part(self, rows: range) -> ImageOf:
        """The reader whose row 0 is the first of `rows`."""


class Placed(NamedTuple):
    """Where the images lie.

    Attributes:
        columns: manifest columns (N,); sha256 as 32 raw bytes.
        notes: how often each remark was made, with an example.
        sha256: digest of images.bin.
        marks: what each image looks like (N, 32) uint8, zeros where nobody looked.
        unreadable: row -> what is wrong with it, of images that are not stored.
    """

    columns: dict[str, np.ndarray]
    notes: list[str]
    sha256: str
    marks: np.ndarray
    unreadable: dict[int, str]


def workers_available() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def build_images(
    folder: Path, read: ImageOf, names: np.ndarray, *, request: Any, workers: int, title: str, progress: bool
) -> Placed:
    """Write `folder`/images.bin, going on where an interrupted call with the same `request` stopped.

    Args:
        folder: the work folder.
        read: row -> image; picklable if `workers` > 1.
        names: path of every image (N,), for messages.
        request: JSON-able description of what is built; another one starts anew.
        workers: processes that decode.
        title: shown by the progress bar.
        progress: whether there is one.
    """
    listed = hashlib.sha256()
    for name in names:
        listed.update(f"{text(name)}\n".encode())
    key = digest_of([FORMAT, LAYOUT, request, len(names), listed.hexdigest()])
    log = _Log(len(names))
    _resume(folder, key, log)
    whole = _digest_so_far(folder / IMAGES)
    with (
        progress_bar(title, progress, total=len(names), initial=log.done, unit="image") as bar,
        (folder / IMAGES).open("ab") as images,
        (folder / LOG).open("a", encoding="utf-8") as lines,
    ):
        starts = range(log.done, len(names), CHUNK)
        for segment, entries in _chunks(folder, read, names, starts, workers):
            with segment.open("rb") as part:
                while block := part.read(2**20):
                    whole.update(block)
                    images.write(block)
            images.flush()
            entry = {"bytes": images.tell(), "images": entries}
            lines.write(json.dumps(entry) + "\n")
            lines.flush()
            segment.unlink()
            log.add(entries)
            bar.update(len(entries))
            if len(log.unreadable) > TOO_MANY:
                break
    return Placed(log.columns(), log.notes(names), whole.hexdigest(), log.marks, log.unreadable)


def progress_bar(title: str, shown: bool, **options: Any) -> tqdm[Any]:
    """A progress bar on standard error; in a log file, a line every half minute for what takes longer."""
    from tqdm import tqdm

    quiet: dict[str, Any] = {} if sys.stderr.isatty() else {"mininterval": 30, "delay": 30, "ascii": True}
    return tqdm(desc=title, disable=not shown, **options, **quiet)


def _digest_so_far(path: Path) -> hashlib._Hash:
    """Running SHA-256 of a file that will grow."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")


class _Log:
    """What is kept of the images stored so far: (length, H, W, C), the digest, how often and where first a remark."""

    def __init__(self, count: int) -> None:
        self.done = 0
        self._numbers = np.empty((count, 4), dtype=np.int32)
        self._sha256 = np.zeros((count, 32), dtype=np.uint8)
        self.marks = np.zeros((count, 32), dtype=np.uint8)
        self.unreadable: dict[int, str] = {}
        self._remarks: dict[str, tuple[int, int]] = {}

    def add(self, images: list[Any]) -> None:
        """The entries of a chunk, as `_write_segment` makes them."""
        rows = slice(self.done, self.done + len(images))
        self._numbers[rows] = [image[:4] for image in images]
        digests = bytes.fromhex("".join(image[4] for image in images))
        self._sha256[rows] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32)
        for row, image in enumerate(images, start=self.done):
            if image[6]:
                self.marks[row] = np.frombuffer(bytes.fromhex(image[6]), dtype=np.uint8)
            if image[7]:
                self.unreadable[row] = image[7]
            for remark in image[5]:
                number, first = self._remarks.get(remark, (0, row))
                self._remarks[remark] = (number + 1, first)
        self.done = rows.stop

    def columns(self) -> dict[str, np.ndarray]:
        """Manifest columns."""
        length, height, width, channels = self._numbers.T
        ends = np.cumsum(length, dtype=np.int64)
        columns = {"sha256": self._sha256.view("V32").reshape(-1), "offset": ends - length}
        columns |= {"height": height.copy(), "width": width.copy(), "channels": channels.copy()}
        if not np.array_equal(length, height * width * channels):
            columns["length"] = length.astype(np.int64)
        return columns

    def notes(self, names: np.ndarray) -> list[str]:
        """Remarks for summary.json."""
        found = sorted(self._remarks.items())
        return [f"{number} image(s): {remark} (e.g. {text(names[row])})" for remark, (number, row) in found]


def _resume(folder: Path, key: str, log: _Log) -> None:
    """Fill `log` with the chunks whose bytes are in images.bin; what is behind them is cut off it and its log file."""
    images, lines = folder / IMAGES, folder / LOG
    known = folder / KEY
    if not known.is_file() or known.read_text(encoding="utf-8") != key:
        for path in (images, lines):
            path.unlink(missing_ok=True)
        write_text(known, key)
    for path in (images, lines):
        path.touch()
    size, log_end, end = images.stat().st_size, 0, 0
    with lines.open("rb") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                break
            if entry["bytes"] > size:
                break
            log.add(entry["images"])
            log_end, end = log_end + len(line), entry["bytes"]
    os.truncate(images, end)
    os.truncate(lines, log_end)


def forget_unreadable(folder: Path) -> None:
    """Have the images after the last chunk without an unreadable one read again by the next call."""
    lines = (folder / LOG).read_text(encoding="utf-8").splitlines(keepends=True)
    sound = itertools.takewhile(lambda line: not any(image[7] for image in json.loads(line)["images"]), lines)
    write_text(folder / LOG, "".join(sound))


def _chunks(
    folder: Path, read: ImageOf, names: np.ndarray, starts: range, workers: int
) -> Iterator[tuple[Path, list[Any]]]:
    """Segments in order, at most 2 per worker ahead of the writer."""
    jobs = ((folder / f"segment-{start}.bin", range(start, min(start + CHUNK, len(names)))) for start in starts)
    if workers == 1 or len(starts) < 2:
        for path, rows in jobs:
            yield path, _write_segment(path, read, rows, names[rows.start : rows.stop])
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
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
                "command again: it goes on where it stopped."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _portion(read: ImageOf, rows: range, names: np.ndarray) -> tuple[ImageOf, range, np.ndarray]:
    """What a process needs to read `rows`, with the rows' numbers in it: not the paths of all images."""
    own = names[rows.start : rows.stop]
    return (read.part(rows), range(len(rows)), own) if isinstance(read, Divisible) else (read, rows, own)


def _write_segment(path: Path, read: ImageOf, rows: range, names: np.ndarray) -> list[Any]:
    """Read the images `rows`, called `names`, into a segment file.

    (length, H, W, C, sha256, remarks, mark, what is wrong with it) of each.
    """
    entries = []
    with path.open("wb") as file:
        for row, name in zip(rows, names, strict=True):
            try:
                found = read(row)
            except DataError as error:
                entries.append([0, 0, 0, 0, NO_DIGEST, (), "", str(error)])
                continue
            stored = found if isinstance(found, Stored) else Stored(found, found.shape)
            if stored.data.dtype != np.uint8 or len(stored.shape) != 3 or not all(stored.shape):
                raise DataError(f"{text(name)} is {stored.data.dtype} {stored.shape}; expected uint8 (H, W, C).")
            data = np.ascontiguousarray(stored.data).data
            file.write(data)
            digest, mark = hashlib.sha256(data).hexdigest(), stored.mark.hex()
            entries.append([data.nbytes, *map(int, stored.shape), digest, stored.remarks, mark, ""])
    return entries
