"""From a dataset source to a prepared folder: the folder appears whole or not at all, and interrupted work goes on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.data.cache import build_images, workers_available
from probmetric.data.digest import write_digest
from probmetric.data.manifest import IMAGES, MANIFEST, SPLITS, SUMMARY, DataError, write_manifest
from probmetric.data.raw import RawFiles
from probmetric.data.sources import REGISTRY
from probmetric.data.sources._base import Table
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
        table: Table = source.read(files, seed=seed)
        placed = build_images(
            work,
            table.image,
            table.columns["path"],
            request={"dataset": name, "seed": seed, "options": options},
            workers=_workers(workers, table),
            title=f"prepare {name}",
            progress=progress,
        )
        columns, repeats = without_repeats({**table.columns, **placed.columns})
        columns["index"] = np.arange(len(columns["offset"]))
        notes = [*files.notes, *table.notes, *placed.notes, *repeats]
        folder = work / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        size = (work / IMAGES).stat().st_size
        metadata: dict[str, Any] = {"dataset": name, "protocol": table.protocol, "images": ".", "bytes": size}
        if table.pairs:
            metadata["pairs"] = kept_pairs(table, columns["path"])
        write_manifest(folder / MANIFEST, columns, metadata)
        write_json(folder / SUMMARY, summarise(columns, table, notes, {"seed": seed, "options": options}))
        (work / IMAGES).rename(folder / IMAGES)
        write_digest(folder, [MANIFEST, IMAGES], {IMAGES: placed.sha256})
        replace_folder(folder, target)
        shutil.rmtree(work)
    return target


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


def without_repeats(columns: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Leave out images that occur in two splits: the test copy stays, then the validation copy.

    Copies within one split stay. The bytes remain in images.bin; only the rows go. Labels stay contiguous.

    Returns:
        (columns, notes): the notes name the images left out.
    """
    split, digest = np.asarray(columns["split"], dtype=str), columns["sha256"]
    rank = np.array([SPLITS.index(name) for name in split])
    _, key = np.unique(digest.astype("S32"), return_inverse=True)  # 128 bits tell images apart
    best = np.full(key.max(initial=-1) + 1, -1)
    np.maximum.at(best, key, rank)
    leave = rank < best[key]
    if not leave.any():
        return columns, []
    paths = [str(path) for path in columns["path"][leave]]
    note = f"{len(paths)} image(s) left out because a copy is in a later split: {', '.join(paths[:20])}"
    kept = {name: values[~leave] for name, values in columns.items()}
    kept["label"] = np.unique(kept["label"], return_inverse=True)[1].astype(np.int64)
    return kept, [note + (" ..." if paths[20:] else "")]


def kept_pairs(table: Table, kept: np.ndarray) -> list[tuple[int, int, int]]:
    """The table's pairs by manifest row; those with an image that was left out are dropped.

    Args:
        table: the dataset before images were left out.
        kept: path of every manifest row (N,).
    """
    row = {path: i for i, path in enumerate(kept)}
    paths = table.columns["path"]
    found = ((row.get(paths[first]), row.get(paths[second]), int(same)) for first, second, same in table.pairs)
    return [(first, second, same) for first, second, same in found if first is not None and second is not None]


def summarise(
    columns: dict[str, np.ndarray], table: Table, notes: list[str], request: dict[str, Any]
) -> dict[str, Any]:
    """Counts and facts for summary.json."""
    label, split = np.asarray(columns["label"]), np.asarray(columns["split"], dtype=str)
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
        "channels": sorted({int(channels) for channels in columns["channels"]}),
        "notes": notes,
        **table.facts,
        **request,
    }
