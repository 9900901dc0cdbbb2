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
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from probmetric.data.manifest import IMAGES, DataError
from probmetric.data.version import FORMAT
from probmetric.io import digest_of, write_text

if TYPE_CHECKING:
    from tqdm import tqdm

CHUNK = 64
LOG, KEY = "progress.jsonl", "request.txt"


class Stored(NamedTuple):
    """An image as it goes into images.bin.

    Attributes:
        data: its bytes, (H, W, C) uint8 pixels or (L,) uint8 of an encoded file.
        shape: (H, W, C) of the decoded image.
        remarks: decisions taken while decoding.
    """

    data: np.ndarray
    shape: tuple[int, int, int]
    remarks: tuple[str, ...] = ()


Reader = Callable[[int], "Stored | np.ndarray"]


class Placed(NamedTuple):
    """Where the images lie.

    Attributes:
        columns: manifest columns (N,).
        notes: how often each remark was made, with an example.
        sha256: digest of images.bin.
    """

    columns: dict[str, np.ndarray]
    notes: list[str]
    sha256: str


def workers_available() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def build_images(
    folder: Path, read: Reader, names: np.ndarray, *, request: Any, workers: int, title: str, progress: bool
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
        listed.update(f"{name}\n".encode())
    key = digest_of([FORMAT, request, len(names), listed.hexdigest()])
    log = _resume(folder, key)
    done = sum(len(chunk.sha256) for chunk in log)
    whole = _digest_so_far(folder / IMAGES)
    with (
        progress_bar(title, progress, total=len(names), initial=done, unit="image") as bar,
        (folder / IMAGES).open("ab") as images,
        (folder / LOG).open("a", encoding="utf-8") as lines,
    ):
        starts = range(done, len(names), CHUNK)
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
            log.append(_Chunk.of(entry))
            bar.update(len(entries))
    columns, notes = _placed(log, names)
    return Placed(columns, notes, whole.hexdigest())


def progress_bar(title: str, shown: bool, **options: Any) -> tqdm[Any]:
    """A progress bar on standard error; in a log file, a line every half minute for what takes longer."""
    from tqdm import tqdm

    quiet: dict[str, Any] = {} if sys.stderr.isatty() else {"mininterval": 30, "delay": 30, "ascii": True}
    return tqdm(desc=title, disable=not shown, **options, **quiet)


def _digest_so_far(path: Path) -> hashlib._Hash:
    """Running SHA-256 of a file that will grow."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")


class _Chunk(NamedTuple):
    """What is kept of a chunk: (length, H, W, C) (n, 4), digests, and the remarks on its rows."""

    numbers: np.ndarray
    sha256: np.ndarray
    remarks: dict[int, list[str]]

    @classmethod
    def of(cls, entry: dict[str, Any]) -> _Chunk:
        images = entry["images"]
        numbers = np.array([image[:4] for image in images], dtype=np.int64)
        digests = np.array([image[4] for image in images], dtype="S64")
        return cls(numbers, digests, {i: m[5] for i, m in enumerate(images) if m[5]})


def _resume(folder: Path, key: str) -> list[_Chunk]:
    """Chunks whose bytes are in images.bin; what is behind them is cut off images.bin and the log."""
    images, lines = folder / IMAGES, folder / LOG
    known = folder / KEY
    if not known.is_file() or known.read_text(encoding="utf-8") != key:
        for path in (images, lines):
            path.unlink(missing_ok=True)
        write_text(known, key)
    for path in (images, lines):
        path.touch()
    size, good, log_end, end = images.stat().st_size, [], 0, 0
    with lines.open("rb") as log:
        for line in log:
            try:
                entry = json.loads(line)
            except ValueError:
                break
            if entry["bytes"] > size:
                break
            good.append(_Chunk.of(entry))
            log_end, end = log_end + len(line), entry["bytes"]
    os.truncate(images, end)
    os.truncate(lines, log_end)
    return good


def _chunks(
    folder: Path, read: Reader, names: np.ndarray, starts: range, workers: int
) -> Iterator[tuple[Path, list[Any]]]:
    """Segments in order, at most 2 per worker ahead of the writer."""
    jobs = ((folder / f"segment-{start}.bin", range(start, min(start + CHUNK, len(names)))) for start in starts)
    if workers == 1 or len(starts) < 2:
        for path, rows in jobs:
            yield path, _write_segment(read, path, rows, names)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_set_reader, initargs=(read, names)) as pool:
        queue: collections.deque[tuple[Path, Future[list[Any]]]] = collections.deque()
        try:
            for path, rows in itertools.islice(jobs, 2 * workers):
                queue.append((path, pool.submit(_work, path, rows)))
            while queue:
                path, future = queue.popleft()
                entries = future.result()
                yield path, entries
                for path, rows in itertools.islice(jobs, 1):
                    queue.append((path, pool.submit(_work, path, rows)))
        except BrokenProcessPool as error:
            raise DataError(
                f"a process decoding images for {folder} was killed (out of memory?); free memory, then run the same "
                "command again: it goes on where it stopped."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


_WORKER: dict[str, Any] = {}


def _set_reader(read: Reader, names: np.ndarray) -> None:
    _WORKER.update(read=read, names=names)


def _work(path: Path, rows: range) -> list[Any]:
    return _write_segment(_WORKER["read"], path, rows, _WORKER["names"])


def _write_segment(read: Reader, path: Path, rows: range, names: np.ndarray) -> list[Any]:
    """Read the images `rows` into a segment file; (length, H, W, C, sha256, remarks) of each."""
    entries = []
    with path.open("wb") as file:
        for row in rows:
            found = read(row)
            stored = found if isinstance(found, Stored) else Stored(found, found.shape)
            if stored.data.dtype != np.uint8 or len(stored.shape) != 3 or not all(stored.shape):
                raise DataError(
                    f"image {row} ({names[row]}) is {stored.data.dtype} {stored.shape}; expected uint8 (H, W, C)."
                )
            data = np.ascontiguousarray(stored.data).data
            file.write(data)
            entries.append([data.nbytes, *map(int, stored.shape), hashlib.sha256(data).hexdigest(), stored.remarks])
    return entries


def _placed(log: list[_Chunk], names: np.ndarray) -> tuple[dict[str, np.ndarray], list[str]]:
    numbers = np.concatenate([np.empty((0, 4), dtype=np.int64), *(chunk.numbers for chunk in log)])
    length, height, width, channels = numbers.T
    columns = {
        "sha256": np.concatenate([np.empty(0, dtype="S64"), *(chunk.sha256 for chunk in log)]),
        "offset": np.cumsum(length) - length,
        "height": height.astype(np.int32),
        "width": width.astype(np.int32),
        "channels": channels.astype(np.int32),
    }
    if not np.array_equal(length, height * width * channels):
        columns["length"] = length
    rows_of: dict[str, list[int]] = collections.defaultdict(list)
    start = 0
    for chunk in log:
        for row, remarks in chunk.remarks.items():
            for remark in remarks:
                rows_of[remark].append(start + row)
        start += len(chunk.sha256)
    notes = [f"{len(rows)} image(s): {remark} (e.g. {names[rows[0]]})" for remark, rows in sorted(rows_of.items())]
    return columns, notes
