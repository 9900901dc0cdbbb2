"""Write, read and check the files of a stored gallery.

    gallery.json              model digest, dimension, names of the next two files, SHA-256 of the content
                              (`digest_of_content`), facts learnt from the images' own answers (`gallery_trust.Trust`)
    vectors-<n>.safetensors   mean (N, M), uncertainty (N,), looks (N, L): memory-mapped
    images-<n>.parquet        path, class and file of every image, and whether the model was trained on it

    canary.safetensors        embeddings of eight drawn images, made with the gallery (`canary`); may be missing

A writer writes both files whole under the next number n, then gallery.json, and then removes the old files. So a reader
sees the old gallery or the new one; if a file that gallery.json names is gone, it reads gallery.json again.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from probmetric.io import (
    FileError,
    atomic_path,
    check_readable,
    of_kind,
    open_tensors,
    present,
    read_json,
    read_tensors,
    remove_abandoned,
    sha256_file,
    signed,
    unsigned,
    write_json,
    write_tensors,
)
from probmetric.metrics.arrays import UNIT_TOLERANCE, row_norms
from probmetric.serving import canary as canary_images
from probmetric.serving.content import Content, digest_of_content

GALLERY, INDEX = "gallery", "gallery.json"
AGAIN = "make the gallery again (`probmetric index`)"
LARGEST_INDEX = 16 * 2**20
_COLUMNS = {"path": "paths", "class_name": "class_names", "file": "files", "use": "uses"}
_VECTORS, _IMAGES = r"vectors-(\d{1,12})\.safetensors", r"images-(\d{1,12})\.parquet"


class Index(BaseModel, extra="forbid"):
    """Hold the values of gallery.json; a file name that leads out of the folder is refused."""

    format: Literal[4]
    model: str
    dim: Annotated[int, Field(ge=0, le=2**20)]
    vectors: Annotated[str, Field(pattern=rf"^{_VECTORS}$")]
    images: Annotated[str, Field(pattern=rf"^{_IMAGES}$")]
    content: str
    trust: dict[str, Any] | None


def read(folder: Path) -> tuple[Content, Index]:
    """Return the gallery in `folder`, its vectors on disk, and the values of gallery.json.

    Raises:
        FileError: a file is missing or damaged, or its content cannot be a gallery.
    """
    index = _read_index(folder)
    while True:
        try:
            return _read_content(folder, index), index
        except FileError:
            newer = _read_index(folder)
            if newer == index:
                raise
            index = newer  # a writer has replaced the files in the meantime


def write(folder: Path, content: Content, digest: str, trust: dict[str, Any] | None) -> Content:
    """Store `content` and return it with its vectors on disk.

    Args:
        folder: the gallery's folder.
        content: its content.
        digest: digest of the content, see `digest_of_content`.
        trust: facts about its answers; None keeps those that another process has stored.

    Raises:
        FileError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = _index_of(folder, digest, content.files)
    if index is None:
        number = 1 + max((_number(path.name) for path in folder.iterdir()), default=0)
        files = {"vectors": f"vectors-{number}.safetensors", "images": f"images-{number}.parquet"}
        write_tensors(folder / files["vectors"], content.tensors)
        _write_names(folder / files["images"], content)
        index = Index(format=4, model=content.model, dim=content.mean.shape[1], content=digest, trust=trust, **files)
    elif trust is not None:
        index = index.model_copy(update={"trust": trust})
    write_json(folder / INDEX, signed(index.model_dump()))
    for name in ("vectors", "images"):
        remove_abandoned(folder, f"{name}-")
    for path in folder.iterdir():
        if _number(path.name) and path.name not in (index.vectors, index.images):
            with contextlib.suppress(OSError):  # a process that has mapped the file keeps its content
                path.unlink()
    return replace(content, mean=_mapped(folder / index.vectors, *content.mean.shape))


def content_on_disk(folder: Path) -> str:
    """Return the digest of the content that gallery.json in `folder` names; "" if there is no gallery."""
    return _read_index(folder).content if present(folder / INDEX) else ""


def state_on_disk(folder: Path) -> str:
    """Return the digest of gallery.json in `folder` (content and facts about answers); "" without a gallery."""
    return sha256_file(folder / INDEX) if present(folder / INDEX) else ""


def write_canary(folder: Path, canary: np.ndarray | None) -> None:
    """Write the embeddings of the images of `canary`; None removes those of an earlier gallery."""
    if canary is None:
        (folder / canary_images.FILE).unlink(missing_ok=True)
    else:
        write_tensors(folder / canary_images.FILE, {"canary": canary})


def read_canary(folder: Path) -> np.ndarray | None:
    """Return the embeddings that `write_canary` wrote; None if there are none.

    Raises:
        FileError: the file is damaged.
    """
    path = folder / canary_images.FILE
    if not present(path):
        return None
    canary = read_tensors(path)[0].get("canary")
    if canary is None or not canary_images.sound(canary):
        raise FileError(f"{path} is damaged; {AGAIN}.")
    return np.asarray(canary)


def _index_of(folder: Path, digest: str, files: list[str]) -> Index | None:
    """Return the values of gallery.json if the `files` that it names already hold this content."""
    try:
        index = _read_index(folder)
        same = present(folder / index.vectors) and index.content == digest
        return index if same and _read_names(folder / index.images)["files"] == files else None
    except FileError:
        return None


def _number(name: str) -> int:
    """Return the number in the name of a file of vectors or images; 0 of another file."""
    match = re.fullmatch(_VECTORS, name) or re.fullmatch(_IMAGES, name)
    return int(match[1]) if match else 0


def _read_index(folder: Path) -> Index:
    """Return the checked values of gallery.json."""
    path = folder / INDEX
    if not present(path):
        raise FileError(f"{folder} is no gallery (it has no {INDEX}); make one with `probmetric index`.")
    if path.stat().st_size > LARGEST_INDEX:
        raise FileError(f"{path} is larger than {LARGEST_INDEX >> 20} MiB; {AGAIN}.")
    index: Index = of_kind(unsigned(read_json(path, AGAIN), path, AGAIN), Index, path, AGAIN)
    return index


def _read_content(folder: Path, index: Index) -> Content:
    """Read and check the content that `index` names."""
    names = _read_names(folder / index.images)
    tensors = _open_tensors(folder / index.vectors, len(names["paths"]), index.dim)
    parts: dict[str, Any] = {**tensors, **names}
    content = Content(index.model, **parts)
    if len(set(content.paths)) < len(content.paths):
        raise FileError(f"{folder} names an image twice; {AGAIN}.")
    _check_rows(folder / index.vectors, content)
    if digest_of_content(content) != index.content:
        raise FileError(f"{folder} is damaged: its vectors or names are not what was written; {AGAIN}.")
    return content


def _open_tensors(path: Path, rows: int, dim: int) -> dict[str, np.ndarray]:
    """Return the tensors of the file of vectors; `mean` is a memory map of the file."""
    with open_tensors(path, fix=AGAIN) as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: (part.get_shape(), part.get_dtype()) for name, part in parts.items()}
        looks = shapes.get("looks", ([0, 0], ""))[0][-1:]
        expected = {"mean": ([rows, dim], "F32"), "uncertainty": ([rows], "F32"), "looks": ([rows, *looks], "F32")}
        if shapes != expected:
            raise FileError(
                f"{path} holds {shapes}; expected mean ({rows}, {dim}), uncertainty ({rows},), looks. {AGAIN}."
            )
        small = {name: file.get_tensor(name) for name in ("uncertainty", "looks")}
    return {"mean": _mapped(path, rows, dim), **small}


def _mapped(path: Path, rows: int, dim: int) -> np.ndarray:
    """Map the tensor `mean` (rows, dim) into memory from the file."""
    if not rows * dim:
        return np.empty((rows, dim), dtype=np.float32)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            start = json.loads(file.read(length))["mean"]["data_offsets"][0]
        return np.memmap(path, dtype=np.float32, mode="r", offset=8 + length + start, shape=(rows, dim))
    except (OSError, ValueError, KeyError) as error:
        raise FileError(f"{path} is damaged or missing ({error}); {AGAIN}.") from error


def _check_rows(path: Path, content: Content) -> None:
    """Raise `FileError` unless the rows are directions and their uncertainties numbers, even if the digest is right."""
    length = row_norms(content.mean)
    unit = (np.abs(length - 1.0) <= UNIT_TOLERANCE) | (length == 0.0)  # a zero row: an image without a direction
    off = ~unit | ~np.isfinite(content.uncertainty)
    if off.any():
        raise FileError(f"{path} is damaged: row {int(off.argmax())} is no embedding; {AGAIN}.")
    if np.isinf(content.looks).any():
        raise FileError(f"{path} is damaged: its looks are not finite; {AGAIN}.")


def _write_names(path: Path, content: Content) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {column: pa.array(getattr(content, name), pa.string()) for column, name in _COLUMNS.items()}
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(columns), temporary, write_page_checksum=True)


def _read_names(path: Path) -> dict[str, list[str]]:
    """Return paths, classes and files of the images, as `Content` calls them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_readable(path)
    try:
        # read_table would import pandas, which takes a second
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(list(_COLUMNS))
        names = {name: table.column(column).to_pylist() for column, name in _COLUMNS.items()}
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise FileError(f"{path} is damaged or missing ({' '.join(str(error).split())}); {AGAIN}.") from error
    if set(table.schema.types) != {pa.string()} or any(column.null_count for column in table.columns):
        raise FileError(f"{path} holds {table.schema.types}; expected names. {AGAIN}.")
    return names
