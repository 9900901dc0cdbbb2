"""Vectors of any embedding model, in a file: galleries to certify and queries to ask. No model, no torch.

    vector            (N, M) numbers of any type; also called vectors, mean or embedding
    label             class of each row; "" or missing where none is known
    path              name of each row; by default its number
    split             gallery | calibration (or query); without it all rows are the gallery
    group             what rows come from together: a person, a walk, a burst

The gallery of `shop.parquet` is kept in the folder `shop.gallery` beside it, with its certificates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.sources.embeddings import VECTORS, _arrays
from probmetric.errors import ServingError
from probmetric.io import present
from probmetric.serving.gallery import Gallery
from probmetric.serving.gallery_files import INDEX

FILES = (".parquet", ".npz", ".npy", ".safetensors")
LABELS = ("label", "labels", "class", "class_name")
NAMES = ("path", "paths", "id", "name")
GALLERY_SPLITS, QUERY_SPLITS = ("gallery", "reference", "index"), ("calibration", "query", "queries", "probe")


@dataclass(frozen=True)
class Vectors:
    """Rows of a file.

    Attributes:
        file: where they were read.
        rows: (N, M) vectors as they were stored.
        labels: class of each row (N), "" where none is known.
        names: name of each row (N).
        splits: split of each row (N), "" where the file has no such column.
        groups: what rows come from together (N,); None where the file does not say.
    """

    file: Path
    rows: np.ndarray
    labels: list[str]
    names: list[str]
    splits: list[str]
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, splits: Sequence[str]) -> Vectors:
        """Return the rows of some splits."""
        kept = np.array([split in splits for split in self.splits], dtype=bool)
        chosen = np.flatnonzero(kept).tolist()
        return replace(
            self,
            rows=self.rows[kept],
            labels=[self.labels[row] for row in chosen],
            names=[self.names[row] for row in chosen],
            splits=[self.splits[row] for row in chosen],
            groups=None if self.groups is None else self.groups[kept],
        )

    @property
    def parts(self) -> tuple[Vectors, Vectors | None]:
        """The gallery, and labelled queries beside it, or None where the file has no split.

        Raises:
            ServingError: the splits name a gallery or queries only.
        """
        if not any(self.splits):
            return self, None
        gallery, queries = self.of(GALLERY_SPLITS), self.of(QUERY_SPLITS)
        if not len(gallery) or not len(queries):
            raise ServingError(
                f"{self.file}: the splits are {', '.join(sorted(set(self.splits)))}; expected rows of 'gallery' and of "
                "'calibration' (or 'query'), or no column `split`."
            )
        return gallery, queries


def is_vectors(place: str | Path) -> bool:
    """Whether a place is a file of vectors, by its name."""
    return Path(place).suffix.lower() in FILES


def read_vectors(file: Path, *, label: str = "", group: str = "") -> Vectors:
    """Read a file of vectors.

    Args:
        file: Parquet, .npz, .npy with a CSV file beside it, or safetensors.
        label: column of the classes; by default one of `LABELS`.
        group: column of the groups; by default none.

    Raises:
        DataError: the file is damaged, or a column is missing or has another length.
    """
    if not is_vectors(file) or not present(file):
        raise DataError(f"{file} is no file of vectors; expected {', '.join(FILES)}.")
    columns = _arrays(file)
    vector = next((name for name in VECTORS if name in columns), "")
    if not vector or columns[vector].ndim != 2:
        raise DataError(f"{file} holds {', '.join(columns)}; expected a column `vector` of lists of one length.")
    rows = columns[vector]
    labels = _column(file, columns, label, LABELS, len(rows))
    names = _column(file, columns, "", NAMES, len(rows))
    splits = _column(file, columns, "", ("split",), len(rows))
    groups = _column(file, columns, group, (), len(rows)) if group else None
    return Vectors(
        file,
        rows,
        labels or [""] * len(rows),
        names or [f"{file.stem}/{row}" for row in range(len(rows))],
        splits or [""] * len(rows),
        None if groups is None else np.array(groups),
    )


def gallery_folder(file: Path) -> Path:
    """Return the folder that keeps the gallery of a file of vectors."""
    return file.with_suffix(".gallery")


def gallery_of(vectors: Vectors) -> Gallery:
    """Return the gallery of a file: the stored one, with its certificates, where it holds the same vectors."""
    gallery = Gallery.from_vectors(vectors.rows, vectors.labels, vectors.names)
    folder = gallery_folder(vectors.file)
    if present(folder / INDEX):
        stored = Gallery.open(folder)
        if stored.digest == gallery.digest:
            return stored
    return gallery


def _column(
    file: Path, columns: dict[str, np.ndarray], asked: str, usual: Sequence[str], count: int
) -> list[str] | None:
    """Return a column as text, the one that is asked for or the first of the usual names; None where there is none."""
    name = asked or next((name for name in usual if name in columns), "")
    if not name:
        return None
    if name not in columns:
        raise DataError(f"{file} has no column {name!r}; it has {', '.join(columns)}.")
    values = columns[name]
    if values.shape != (count,):
        raise DataError(f"{file}: {name} has the shape {values.shape} for {count} vectors; give one entry each.")
    return ["" if value is None or value != value else str(value) for value in values.tolist()]
