"""Prepare a dataset: turn its source into a prepared folder, which appears whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.data.image_file import TOO_MANY, Placed, workers_available, write_images
from probmetric.data.manifest import (
    FORMAT,
    IMAGES,
    MANIFEST,
    SPLITS,
    SUMMARY,
    DataError,
    counted,
    listed_problems,
    text,
    write_digest,
    write_manifest,
)
from probmetric.data.near import alike
from probmetric.data.raw import RawFiles, raw_content
from probmetric.data.sources import REGISTRY, Table
from probmetric.data.sources._base import Protocol
from probmetric.data.sources._listing import check_table
from probmetric.io import write_json
from probmetric.io.folders import check_replaceable, empty_folder, put_folder, scratch_folder
from probmetric.runs.source import is_own, module_digests, source_file

PREPARED = "prepared dataset"
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

    The same arguments give the same bytes. An existing folder is replaced only when the new one is complete. Archives
    that an interrupted call has unpacked are used by the next one; images are read again.

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

    Raises:
        FileError: `output_folder` overlaps `raw`, or holds files that do not belong to a prepared dataset.
        DataError: files are missing or damaged.
    """
    source = REGISTRY.create(name, **options)
    target = Path(output_folder)
    check_replaceable(target, PREPARED, [] if raw is None else [raw])
    with work_folder(target) as work:
        files = RawFiles(
            name,
            None if raw is None else Path(raw),
            work,
            subset=bool(options.get("subset", False)),
            progress=progress,
            homes=source.homes,
        )
        table = source.read(files, seed=seed)
        check_table(name, table)
        made_from: dict[str, Any] = {"format": FORMAT} | ({"code": code} if (code := plugin_code(name)) else {})
        root, names = source.raw_files(files)
        if digest := raw_content(root, names, target):
            made_from |= {"source": name, "raw_content": digest}
        folder = empty_folder(work / "new")
        _store(folder, table, files, {"seed": seed, "options": options, **made_from}, workers)
        put_folder(folder, target, PREPARED)
    return target


def plugin_code(name: str) -> dict[str, str]:
    """Return module -> digest of the code of source `name` if it is a plugin; ours has `manifest.FORMAT`."""
    module = REGISTRY.module(name)
    return {} if is_own(module) or source_file(module) is None else module_digests(module)


def _store(folder: Path, table: Table, files: RawFiles, request: dict[str, Any], workers: int | None) -> None:
    """Write the images of `table` and their facts into `folder`; the columns are removed from `table`."""
    names = table.columns["path"]
    title = f"prepare {files.name}" if files.progress else ""
    workers = workers or (workers_available() if len(names) >= WORTH_PROCESSES else 1)
    workers = workers if hasattr(table.image, "part") else 1
    placed = write_images(folder / IMAGES, table.image, names, workers=workers, title=title)
    readable, unread = _readable(table, placed)
    keep, repeats = repeated({**table.columns, **placed.columns}, placed.marks, readable, table.protocol)
    columns = taken([table.columns, placed.columns], keep)
    metadata: dict[str, Any] = {"dataset": files.name, "protocol": table.protocol, "images": "."}
    metadata["bytes"] = (folder / IMAGES).stat().st_size
    summary = summarise(columns, table, [*files.notes, *table.notes, *placed.notes, *unread, *repeats]) | request
    if unread:
        metadata["left_out"] = len(placed.unreadable)
        summary["left_out"] = [f"{text(names[row])}: {reason}" for row, reason in placed.unreadable.items()]
    if table.pairs:
        metadata["pairs"] = kept_pairs(table.pairs, keep)
    write_manifest(folder / MANIFEST, columns, metadata)
    write_json(folder / SUMMARY, summary)
    write_digest(folder, placed.sha256)


@contextlib.contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """Yield the scratch folder beside `target`, the same one after an interruption; one process at a time.

    Raises:
        DataError: another process is preparing the same folder, or a file cannot be read or written.
    """
    try:
        with scratch_folder(target, PREPARED, wait=False) as work:
            yield work
    except OSError as error:
        place = error.filename or target
        raise DataError(
            f"cannot prepare {target}: {error.strerror or error} ({place}). Free space or change permissions, then run "
            "the same command again."
        ) from error


def _readable(table: Table, placed: Placed) -> tuple[np.ndarray, list[str]]:
    """Return the mask (N,) of the images that could be read, and a note about the others.

    Raises:
        DataError: there are others and they are not to be skipped.
    """
    mask = np.ones(len(table.columns["path"]), dtype=bool)
    mask[list(placed.unreadable)] = False
    if mask.all():
        return mask, []
    reasons = list(placed.unreadable.values())
    if table.on_error == "skip" and len(reasons) <= TOO_MANY and mask.any():
        return mask, [f"{len(reasons)} image(s) left out because they cannot be read; see left_out"]
    if len(reasons) == 1:
        raise DataError(reasons[0])
    advice = "of your own data `on_error: skip` leaves them out"
    if table.on_error == "skip":
        advice = f"`on_error: skip` leaves out at most {TOO_MANY:,}, and never all; mend them, or take them away"
    raise listed_problems(f"{len(reasons)} images cannot be read ({advice}):", reasons)


def repeated(
    columns: dict[str, np.ndarray], marks: np.ndarray, readable: np.ndarray, protocol: Protocol = "open_set"
) -> tuple[np.ndarray, list[str]]:
    """Say which images stay: of copies in several splits those in the test split, else those in the validation split.

    Copies within one split stay, and are counted. Rows are removed; the bytes remain in images.bin. In a `closed_set` a
    class without a training image left is removed, because no model could learn it.

    Args:
        columns: columns of the manifest (N,).
        marks: marks of the images (N, 32), see `data.near`; zeros where none was computed.
        readable: mask (N,) of the images that can be read.
        protocol: whether the test classes are the training classes.

    Returns:
        (mask (N,), notes): the notes name the images left out.

    Raises:
        DataError: a split loses all its images.
    """
    rank = np.zeros(len(columns["split"]), dtype=np.int8)
    for number, name in enumerate(SPLITS):
        rank[columns["split"] == name] = number
    halves = columns["sha256"].astype("V16")  # 128 bits are enough to tell images apart
    equal = np.unique(halves.view("S16"), return_inverse=True)[1]
    same = alike(marks, equal) if marks.any() else equal
    notes = _contradictions(columns, equal, readable)
    rank[~readable] = -1
    keep = readable & (rank == _best(rank, same))
    copies = readable & (rank < _best(rank, equal))
    for gone, what in ((copies, "a copy is"), (readable & ~keep & ~copies, "one that looks the same is")):
        paths = columns["path"][gone]
        if len(paths):
            shown = ", ".join(map(text, paths[:20])) + (" ..." if len(paths) > 20 else "")
            notes.append(f"{len(paths)} image(s) left out because {what} in a later split: {shown}")
    split, label = columns["split"], columns["label"]
    lost = np.setdiff1d(label[split == "train"], label[keep & (split == "train")])
    gone = keep & np.isin(label, lost)
    if protocol == "closed_set" and gone.any() and not gone[keep].all():
        keep &= ~gone
        shown = ", ".join(map(str, np.unique(columns["class_name"][gone])[:20])) + (" ..." if len(lost) > 20 else "")
        notes.append(f"{gone.sum()} image(s) left out because no training image of their class stays: {shown}")
    if emptied := [name for name in SPLITS if np.any(split == name) and not np.any(split[keep] == name)]:
        example = text(columns["path"][split == emptied[0]][0])
        raise DataError(
            f"no image stays in split {emptied[0]}: each cannot be read, is a copy of one of a later split, or looks "
            f"like one, such as {example}; give every split images of its own."
        )
    within = int(keep.sum()) - len(np.unique(same[keep]))
    if marks.any() and within:
        notes.append(f"{within} image(s) look like another one of their split")
    return keep, notes


def _contradictions(columns: dict[str, np.ndarray], equal: np.ndarray, readable: np.ndarray) -> list[str]:
    """Return a note about images with the same pixels (the same number in `equal` (N,)) in two classes."""
    label = columns["label"]
    lowest = np.full(equal.max(initial=-1) + 1, np.iinfo(np.int64).max)
    highest = np.full_like(lowest, -1)
    np.minimum.at(lowest, equal[readable], label[readable])
    np.maximum.at(highest, equal[readable], label[readable])
    rows = np.flatnonzero(readable & (lowest[equal] < highest[equal]))
    if not len(rows):
        return []
    rows = rows[np.argsort(equal[rows], kind="stable")]
    shown = ", ".join(f"{text(columns['path'][row])} ({columns['class_name'][row]})" for row in rows[:20])
    more = " ..." if len(rows) > 20 else ""
    return [f"{len(rows)} image(s) are contradictory duplicates, the same pixels under two classes: {shown}{more}"]


def _best(rank: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return the latest split (N,) in which the image with the same `key` (N,) occurs."""
    best = np.full(key.max(initial=-1) + 1, -1, dtype=np.int8)
    np.maximum.at(best, key, rank)
    return best[key]


def taken(parts: Sequence[dict[str, np.ndarray]], keep: np.ndarray) -> dict[str, np.ndarray]:
    """Return rows of the columns where `keep` (N,) holds, labels contiguous; the columns are removed from `parts`."""
    rows = slice(None) if keep.all() else keep
    columns = {name: part.pop(name)[rows] for part in parts for name in list(part)}
    if not keep.all():
        columns["label"] = np.unique(columns["label"], return_inverse=True)[1].astype(np.int64)
    return columns | {"index": np.arange(len(columns["label"]))}


def kept_pairs(pairs: Sequence[tuple[int, int, bool]], keep: np.ndarray) -> list[tuple[int, int, int]]:
    """Return the pairs by manifest row, without those of an image that the mask `keep` (N,) leaves out."""
    row = (np.cumsum(keep) - 1).tolist()
    return [(row[first], row[second], int(same)) for first, second, same in pairs if keep[first] and keep[second]]


def summarise(columns: dict[str, np.ndarray], table: Table, notes: list[str]) -> dict[str, Any]:
    """Return counts and facts for summary.json."""
    sizes = np.unique(np.stack([columns["height"], columns["width"]]), axis=1).T.tolist()
    return {
        "protocol": table.protocol,
        "description": table.description,
        **counted(columns["label"], columns["split"]),
        "image_size": sizes[0] if len(sizes) == 1 else None,
        "channels": np.unique(columns["channels"]).tolist(),
        "notes": notes,
        **table.facts,
    }
