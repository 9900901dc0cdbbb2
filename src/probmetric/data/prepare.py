"""From a dataset source to a prepared folder, atomically: the folder appears whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.data.digest import write_digest
from probmetric.data.manifest import IMAGES, MANIFEST, SPLITS, SUMMARY, DataError, write_manifest
from probmetric.data.sources import REGISTRY
from probmetric.data.sources._base import Table
from probmetric.io import atomic_path, write_json


def prepare_dataset(
    name: str,
    output_folder: str | Path,
    *,
    raw: str | Path | None = None,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Path:
    """Prepare dataset `name`: manifest.parquet, images.bin, summary.json and digest in `output_folder`.

    The same arguments give the same bytes. An existing folder is replaced only when the new one is complete.

    Args:
        name: a registered dataset, see `list_datasets()`.
        output_folder: the folder to write, `data/prepared/<name>`.
        raw: folder with the archives the user supplied, for datasets that need them.
        seed: seed of the validation split and of generated images.
        progress: show a progress bar on standard error.
        **options: options of the dataset's source.

    Returns:
        The prepared folder.
    """
    source = REGISTRY.create(name, **options)
    table: Table = source.read(None if raw is None else Path(raw), seed=seed)
    with new_folder(Path(output_folder)) as folder:
        place = _write_images(folder / IMAGES, table, name, progress)
        columns = {**place, **table.columns, "index": np.arange(len(place["offset"]))}
        write_manifest(folder / MANIFEST, columns, {"dataset": name, "protocol": table.protocol, "images": "."})
        write_json(folder / SUMMARY, summarise(columns, table, {"seed": seed, "options": options}))
        write_digest(folder, [MANIFEST, IMAGES])
    return Path(output_folder)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty sibling of `target`; on success it takes the target's place, else it is removed.

    Raises:
        DataError: another process is preparing the same folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.partial"
    with _only_one(target):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            replace_folder(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def replace_folder(new: Path, target: Path) -> None:
    """Rename folder `new` to `target`, setting aside and then deleting what was there."""
    old = target.parent / f".{target.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _only_one(target: Path) -> Iterator[None]:
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
            yield
        finally:
            lock.unlink(missing_ok=True)


def _write_images(path: Path, table: Table, name: str, progress: bool) -> dict[str, np.ndarray]:
    from tqdm import tqdm

    count = len(table.columns["path"])
    digests, shapes = [], np.zeros((count, 3), dtype=np.int32)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for row in tqdm(range(count), desc=f"prepare {name}", unit="image", disable=not progress):
            pixels = table.image(row)
            if pixels.dtype != np.uint8 or pixels.ndim != 3:
                raise DataError(
                    f"{name}: image {row} ({table.columns['path'][row]}) is {pixels.dtype} {pixels.shape}; "
                    "expected uint8 (H, W, C)."
                )
            data = pixels.tobytes()
            digests.append(hashlib.sha256(data).hexdigest())
            shapes[row] = pixels.shape
            file.write(data)
    sizes = shapes.astype(np.int64).prod(axis=1)
    return {
        "sha256": np.array(digests),
        "offset": np.cumsum(sizes) - sizes,
        "height": shapes[:, 0],
        "width": shapes[:, 1],
        "channels": shapes[:, 2],
    }


def summarise(columns: dict[str, np.ndarray], table: Table, request: dict[str, Any]) -> dict[str, Any]:
    """Counts and facts for summary.json."""
    label, split = np.asarray(columns["label"]), np.asarray(columns["split"])
    sizes = sorted({(int(h), int(w)) for h, w in zip(columns["height"], columns["width"], strict=True)})
    return {
        "protocol": table.protocol,
        "description": table.description,
        "images": len(label),
        "classes": len(np.unique(label)),
        "splits": {
            name: {"images": int((split == name).sum()), "classes": len(np.unique(label[split == name]))}
            for name in SPLITS
        },
        "image_size": list(sizes[0]) if len(sizes) == 1 else None,
        "channels": sorted({int(channels) for channels in columns["channels"]}),
        "notes": table.notes,
        **table.facts,
        **request,
    }
