"""From a dataset source to a prepared folder: the folder appears whole or not at all, and interrupted work goes on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probmetric.data.digest import write_digest
from probmetric.data.image_file import build_images, workers_available
from probmetric.data.manifest import IMAGES, MANIFEST, SPLITS, SUMMARY, DataError, text, write_manifest
from probmetric.data.raw import RawFiles
from probmetric.data.sources import REGISTRY, Table
from probmetric.data.sources._listing import check_table
from probmetric.io import write_json

WORTH_PROCESSES = 512


def prepare_dataset(
    name: str,
    output_folder: str | Path,
    *,
    raw: str | Path | None = None,
    seed: int = 0,
    progress: bool = True,
    workers: int | None = None,
    **options: Any,
) -> Path:
    """Prepare dataset `name`: manifest.parquet, images.bin, summary.json and digest in `output_folder`.

    The same arguments give the same bytes. An existing folder is replaced only when the new one is complete.
    Unpacked archives and finished images of an interrupted call are used by the next one.

    Args:
        name: a registered dataset, see `list_datasets()`.
        output_folder: the folder to write, `data/prepared/<name>`.
        raw: folder with the archives the user supplied, for datasets that need them.
        seed: seed of the validation split and of generated images.
        progress: show progress bars on standard error.
        workers: processes that decode images; by default as many as there are cores to use, one for a few images.
        **options: options of the dataset's source.

    Returns:
        The prepared folder.
    """
    source = REGISTRY.create(name, **options)
    target = Path(output_folder)
    with work_folder(target) as work:
        files = RawFiles(
            name,
            None if raw is None else Path(raw),
            work,
            subset=bool(options.get("subset", False)),
            progress=progress,
            homes=source.homes,
        )
        request = {"seed": seed, "options": options}
        table = source.read(files, seed=seed)
        check_table(name, table)
        content = _stored(work, table, files, request, workers)
        folder = work / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write_manifest(folder / MANIFEST, content.columns, {"dataset": name, **content.metadata})
        write_json(folder / SUMMARY, content.summary)
        (work / IMAGES).rename(folder / IMAGES)
        write_digest(folder, [MANIFEST, IMAGES], {IMAGES: content.sha256})
        replace_folder(folder, target)
        shutil.rmtree(work)
    return target


class _Content(NamedTuple):
    """What goes into the folder beside images.bin, whose digest is `sha256`."""

    columns: dict[str, np.ndarray]
    metadata: dict[str, Any]
    summary: dict[str, Any]
    sha256: str


def _stored(work: Path, table: Table, files: RawFiles, request: dict[str, Any], workers: int | None) -> _Content:
    """Store the images of `table`, whose columns move to the result: with a million images each copy counts."""
    placed = build_images(
        work,
        table.image,
        table.columns["path"],
        request={"dataset": files.name, **request},
        workers=_workers(workers, table),
        title=f"prepare {files.name}",
        progress=files.progress,
    )
    keep, repeats = repeated({**table.columns, **placed.columns})
    columns = taken([table.columns, placed.columns], keep)
    metadata: dict[str, Any] = {"protocol": table.protocol, "images": ".", "bytes": (work / IMAGES).stat().st_size}
    if table.pairs:
        metadata["pairs"] = kept_pairs(table.pairs, keep)
    summary = summarise(columns, table, [*files.notes, *table.notes, *placed.notes, *repeats], request)
    return _Content(columns, metadata, summary, placed.sha256)


def _workers(wanted: int | None, table: Table) -> int:
    if not table.parallel:
        return 1
    return wanted or (workers_available() if len(table.columns["path"]) >= WORTH_PROCESSES else 1)


@contextlib.contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """Yield the scratch folder beside `target`, the same one after an interruption; one process at a time.

    Raises:
        DataError: another process is preparing the same folder, or a file cannot be read or written.
    """
    try:
        with _locked(target) as work:
            yield work
    except OSError as error:
        place = error.filename or target
        raise DataError(
            f"cannot prepare {target}: {error.strerror or error} ({place}). Free space or change permissions, then run "
            "the same command again: it goes on where it stopped."
        ) from error


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.parent / f".{target.name}.work"
    lock = target.parent / f".{target.name}.lock"
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not lock.exists() or lock.stat().st_ino != os.fstat(file.fileno()).st_ino:
                raise BlockingIOError("the lock file was renewed by another process")
        except OSError as error:
            raise DataError(
                f"{target} is being prepared by another process (it holds {lock}); wait for it to finish."
            ) from error
        try:
            work.mkdir(exist_ok=True)
            yield work
        finally:
            lock.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder; on success it takes the place of `target`, else it is removed."""
    with work_folder(target) as work:
        shutil.rmtree(work)
        work.mkdir()
        try:
            yield work
            replace_folder(work, target)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def replace_folder(new: Path, target: Path) -> None:
    """Rename folder `new` to `target`, setting aside and then deleting what was there."""
    old = target.parent / f".{target.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def repeated(columns: dict[str, np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """Which images stay: of one that occurs in two splits the test copy, then the validation copy.

    Copies within one split stay. The bytes remain in images.bin; only the rows go.

    Returns:
        (mask (N,), notes): the notes name the images left out.
    """
    rank = np.zeros(len(columns["split"]), dtype=np.int8)
    for number, name in enumerate(SPLITS):
        rank[columns["split"] == name] = number
    halves = columns["sha256"].view(np.uint8).reshape(len(rank), -1)[:, :16]  # 128 bits tell images apart
    _, key = np.unique(np.ascontiguousarray(halves).view("S16").reshape(-1), return_inverse=True)
    best = np.full(key.max(initial=-1) + 1, -1, dtype=np.int8)
    np.maximum.at(best, key, rank)
    keep = rank == best[key]
    paths = columns["path"][~keep]
    if not len(paths):
        return keep, []
    shown = ", ".join(map(text, paths[:20])) + (" ..." if len(paths) > 20 else "")
    return keep, [f"{len(paths)} image(s) left out because a copy is in a later split: {shown}"]


def taken(parts: Sequence[dict[str, np.ndarray]], keep: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of the columns where `keep` (N,) holds, labels contiguous; the columns are removed from `parts`."""
    rows = slice(None) if keep.all() else keep
    columns = {name: part.pop(name)[rows] for part in parts for name in list(part)}
    if not keep.all():
        columns["label"] = np.unique(columns["label"], return_inverse=True)[1].astype(np.int64)
    return columns | {"index": np.arange(len(columns["label"]))}


def kept_pairs(pairs: Sequence[tuple[int, int, bool]], keep: np.ndarray) -> list[tuple[int, int, int]]:
    """The pairs by manifest row; those with an image that was left out, by the mask `keep` (N,), are dropped."""
    row = (np.cumsum(keep) - 1).tolist()
    return [(row[first], row[second], int(same)) for first, second, same in pairs if keep[first] and keep[second]]


def summarise(
    columns: dict[str, np.ndarray], table: Table, notes: list[str], request: dict[str, Any]
) -> dict[str, Any]:
    """Counts and facts for summary.json."""
    label, split = columns["label"], columns["split"]
    sizes = np.unique(np.stack([columns["height"], columns["width"]]), axis=1).T.tolist()
    return {
        "protocol": table.protocol,
        "description": table.description,
        "images": len(label),
        "classes": len(np.unique(label)),
        "splits": {
            name: {"images": int((split == name).sum()), "classes": len(np.unique(label[split == name]))}
            for name in SPLITS
        },
        "image_size": sizes[0] if len(sizes) == 1 else None,
        "channels": np.unique(columns["channels"]).tolist(),
        "notes": notes,
        **table.facts,
        **request,
    }
