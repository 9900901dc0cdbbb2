"""Read files with vectors of any embedding model: galleries to certify and queries to ask. No model, no torch.

    vector            (N, M) numbers of any type; also called vectors, mean, embedding or embeddings
    label             class of each row; "" or missing where none is known
    path              name of each row; by default its number
    split             gallery | calibration (or query); without it all rows are the gallery
    group             rows of one origin (a person, a walk, a burst) have one group; used on request

Instead of vectors, a file may hold the results of your own index for Q queries in a gallery of N (`lists`):

    similarities      (Q, N) cosines; or scores and indices (Q, k), the best first
    labels            class of each image of the gallery (N,); in Parquet, in the CSV file of the same name
    query_labels      class of each query (Q,); without it each image of the gallery is asked among the others
    group, split      group and split of the queries; path names the gallery images, query_path the queries

A faiss index (.faiss, .index) holds vectors, and the CSV file of the same name the other columns. A frame of pandas,
Arrow or DuckDB has the same columns.

The gallery of `shop.parquet` is kept in the folder `shop.parquet.gallery` beside it, with its certificates.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probmetric.data.manifest import DataError
from probmetric.data.sources.embeddings import arrays_of, columns_beside
from probmetric.data.sources.table import columns_of
from probmetric.data.splits import GALLERY_SPLITS, QUERY_SPLITS
from probmetric.errors import ServingError
from probmetric.io import FileError, present
from probmetric.metrics.arrays import class_names_of
from probmetric.serving import lists
from probmetric.serving.frames import LABELS, VECTORS, check_one_model, column_called, column_of, names_of
from probmetric.serving.gallery import Gallery, directions
from probmetric.serving.gallery_files import INDEX
from probmetric.trust.certificates import CertificateError
from probmetric.trust.copies import SEEN, burst_sentence, copies_of

log = logging.getLogger(__name__)
FAISS = (".faiss", ".index")
FILES = (".parquet", ".npz", ".npy", ".safetensors", *FAISS)
SIMILARITIES, SCORES, INDICES, QUERY_LABELS = "similarities", "scores", "indices", ("query_labels", "query_label")
HELD_OUT = 3  # one group in so many calibrates


@dataclass(frozen=True)
class Vectors:
    """Rows of a file.

    Attributes:
        file: the file.
        rows: (N, M) vectors as they were stored.
        labels: class of each row (N), "" where none is known.
        names: name of each row (N).
        splits: split of each row (N), "" if the file has no such column.
        groups: group of each row (N,); None if not requested.
        columns: names of the other columns of the file.
        hits: queries of your own index, whose rows are its results; None in a file of vectors.
        depth: length of the lists, 0 for similarities.
    """

    file: Path
    rows: np.ndarray
    labels: list[str]
    names: list[str]
    splits: list[str]
    groups: np.ndarray | None = None
    columns: tuple[str, ...] = ()
    hits: Vectors | None = None
    depth: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def rows_where(self, kept: np.ndarray) -> Vectors:
        """Return the rows that are `kept` (N,)."""
        chosen = np.flatnonzero(kept).tolist()
        return replace(
            self,
            rows=self.rows[kept],
            labels=[self.labels[row] for row in chosen],
            names=[self.names[row] for row in chosen],
            splits=[self.splits[row] for row in chosen],
            groups=None if self.groups is None else self.groups[kept],
        )

    def of(self, splits: Sequence[str]) -> Vectors:
        """Return the rows of some splits."""
        return self.rows_where(np.isin(np.array(self.splits, dtype=str), splits))

    @property
    def parts(self) -> tuple[Vectors, Vectors | None]:
        """The gallery and its labelled queries; None instead of queries if the file has no split.

        Raises:
            ServingError: the splits name a gallery or queries only.
        """
        if self.hits is not None:
            return self._among_others() if not any(self.hits.labels) else (self, self.hits)
        if not self.split_in_two:
            return self, None
        gallery, queries = self.of(GALLERY_SPLITS), self.of(QUERY_SPLITS)
        if not len(gallery) or not len(queries):
            raise ServingError(
                f"{self.file}: the splits are {', '.join(sorted(set(self.splits)))}; expected rows of 'gallery' and of "
                "'calibration' (or 'query'), or no column `split`."
            )
        return gallery, queries

    @property
    def split_in_two(self) -> bool:
        """Say whether the column `split` names a gallery or queries, and not for example train, val and test.

        Raises:
            ServingError: it names a gallery or queries, and something else too.
        """
        counts = Counter(self.splits)
        others = [f"{name!r} ({counts[name]})" for name in sorted(counts.keys() - {*GALLERY_SPLITS, *QUERY_SPLITS})]
        if len(others) == len(counts):
            if any(self.splits):
                log.warning("%s: the splits %s name no gallery; all rows are taken", self.file, ", ".join(others))
            return False
        if others:
            raise ServingError(
                f"{self.file}: the column `split` has {', '.join(others)} beside its other names; allowed: "
                f"{', '.join(GALLERY_SPLITS)}, {', '.join(QUERY_SPLITS)}."
            )
        return True

    def _among_others(self) -> tuple[Vectors, Vectors]:
        """Return the gallery, and its images as queries that do not find themselves.

        Raises:
            ServingError: the queries are not the gallery's images, or their lists are too short.
        """
        assert self.hits is not None
        if len(self.hits) != len(self):
            raise ServingError(f"{self.file}: {len(self.hits)} queries without `query_labels`, {len(self)} images.")
        hits = lists.checked(self.hits.rows, len(self), self.depth)
        rows, asks = lists.among_others(hits, np.array(self.labels))
        queries = replace(self.hits, rows=rows, labels=self.labels, names=self.names).rows_where(asks)
        return replace(self, depth=rows.shape[1] if self.depth else 0), queries


def is_vectors(place: str | Path) -> bool:
    """Say whether a path is a file of vectors, by its name."""
    return Path(place).suffix.lower() in FILES


def meant_as_vectors(place: str | Path) -> bool:
    """Say whether a path is a file (which `read_vectors` reads or refuses), and so no model or experiment."""
    return is_vectors(place) or Path(place).is_file()


def read_vectors(file: Path, *, label: str = "", group: str = "") -> Vectors:
    """Read a file of vectors.

    Args:
        file: Parquet, .npz, safetensors; or .npy or a faiss index with a CSV file beside it.
        label: column of the classes; by default one of `LABELS`.
        group: column of the groups; by default none.

    Raises:
        DataError: the file is damaged, or a column is missing or has another length.
    """
    if not present(file):
        raise DataError(f"{file} is missing.")
    if not is_vectors(file):
        advice = "write a table as Parquet, with a column `vector` of lists"
        raise DataError(f"{file} is no file of vectors; expected {', '.join(FILES)}: {advice}.")
    read = _of_faiss(file) if file.suffix.lower() in FAISS else arrays_of(file)
    columns = {name: values for name, values in read.items() if values.ndim}  # a single number does not describe rows
    if {SIMILARITIES, SCORES} & {name for name, values in columns.items() if values.ndim > 1}:
        return _hits_of(columns, file, label=label, group=group)
    vector = column_called(columns, "", VECTORS)
    if vector and not len(columns[vector]):
        raise DataError(f"{file} holds no rows.")
    if not vector or columns[vector].ndim != 2:
        raise DataError(f"{file} holds {', '.join(columns)}; expected a column `vector` of lists of one length.")
    rows, label = columns[vector], column_called(columns, label, LABELS)
    return _described(file, rows, columns, label, names_of(file, columns, len(rows)), group)


def example_vectors() -> tuple[np.ndarray, np.ndarray]:
    """Return the example vectors of the package: embeddings of 2,000 rendered letters.

    Returns:
        float32 (2000, 64), and names of their 50 classes (2000,).
    """
    letters = read_vectors(Path(__file__).with_name("letters.npz"))
    return letters.rows.astype(np.float32), np.array(letters.labels)


def _described(
    file: Path,
    rows: np.ndarray,
    columns: Mapping[str, np.ndarray],
    label: str,
    names: tuple[str, list[str] | None],
    group: str = "",
) -> Vectors:
    """Return rows with the columns that describe them.

    Args:
        file: the file.
        rows: (N, ...).
        columns: name -> values (N,); other columns may have another length.
        label: column of the classes; "" for none.
        names: column of the rows' names, and its entries (N); "" and None for names by file and number.
        group: column of the groups; "" for none.
    """
    count = len(rows)
    split = column_called(columns, "", ("split",))
    labels, splits, groups = (column_of(file, columns, name, count) for name in (label, split, group))
    if groups is not None and "" in groups:
        raise DataError(
            f"{file}: {groups.count('')} of {count} rows have no {group}; give each row one (rows of one group count "
            "once)."
        )
    return Vectors(
        file,
        rows,
        labels=class_names_of(labels or [""] * count),
        names=names[1] or [f"{file.stem}/{row}" for row in range(count)],
        splits=splits or [""] * count,
        groups=None if groups is None else np.array(groups),
        columns=tuple(each for each in columns if each not in (names[0], label)),
    )


def _hits_of(columns: Mapping[str, np.ndarray], file: Path, *, label: str, group: str) -> Vectors:
    """Return the gallery in columns that hold the results of an index for each query."""
    if SIMILARITIES in columns:
        rows = columns[SIMILARITIES]
    elif INDICES in columns:
        rows = lists.joined(columns[SCORES], columns[INDICES])
    else:
        raise DataError(f"{file} holds scores, but no `indices`; add them: the gallery row of each score.")
    listing = file.with_suffix(".csv")
    if file.suffix.lower() == ".parquet" and listing.is_file():
        columns = {**columns, **columns_of(listing)}
    names = column_of(file, columns, column_called(columns, "", ("query_path",)), len(rows))
    called = "query_path", names or [f"query {row}" for row in range(len(rows))]
    query_label = column_called(columns, "", QUERY_LABELS)
    hits = _described(file, rows, columns, query_label, called, group)
    if hits.split_in_two:
        hits = hits.of(QUERY_SPLITS)
    label = column_called(columns, label, LABELS)
    nothing = np.empty((len(columns.get(label, ())), 0), dtype=np.float32)
    others = {name: values for name, values in columns.items() if name != "split"}  # which is of the queries
    gallery = _described(file, nothing, others, label, names_of(file, others, len(nothing)))
    return replace(gallery, hits=hits, depth=rows.shape[1] if rows.ndim == 3 else 0)


def _of_faiss(file: Path) -> dict[str, np.ndarray]:
    """Return the vectors that a faiss index holds, and the columns of the CSV file of the same name.

    Raises:
        DataError: faiss or the CSV file is missing, or the index cannot be read.
    """
    beside = columns_beside(file)
    try:
        faiss = importlib.import_module("faiss")
        index = faiss.read_index(str(file))
        if hasattr(index, "make_direct_map"):
            index.make_direct_map()
        layers = [index]  # an index with ids frees its inner index
        while hasattr(layers[-1], "id_map"):  # rows are in the order in which they were added
            layers.append(faiss.downcast_index(layers[-1].index))
        index = layers[-1]
        if index.ntotal:
            index.reconstruct(0)  # raises an error, where reading many at once would end the process
        vectors = index.reconstruct_n(0, index.ntotal)
    except ModuleNotFoundError as error:
        raise DataError(f"{file} is read by faiss, which is not installed; pip install faiss-cpu.") from error
    except RuntimeError as error:
        raise DataError(f"{file} is no faiss index whose vectors can be read: {error}") from error
    if getattr(index, "code_size", 4 * index.d) < 4 * index.d:
        log.warning("%s holds compressed vectors; the certificate is for answers by these", file)
    return {"vector": np.asarray(vectors)} | beside


def calibrating(
    file: Path, queries: Path | None = None, *, label: str = "", group: str = "", trained_on: Path | None = None
) -> tuple[Vectors, Vectors | None]:
    """Return the gallery in a file, and its labelled calibration queries; None: its rows, each asked among the others.

    Args:
        file: the vectors.
        queries: a file of labelled queries; by default the file's split, or with `group` or `trained_on` rows held out.
        label: column of the classes.
        group: column of the groups.
        trained_on: file of the model's training images, which must not calibrate.

    Raises:
        ServingError: no rows can be held out.
        CertificateError: the model was trained on all queries.
    """
    for beside in filter(None, (queries, trained_on)):
        check_one_model(file, beside)
    vectors = read_vectors(file, label=label, group="" if queries else group)
    if vectors.hits is not None and trained_on:
        raise ServingError(f"{file} has no vectors to compare with --trained-on; drop the option and those queries.")
    trained = read_vectors(trained_on) if trained_on else None
    if trained is not None:
        _check_dimensions(vectors, trained)
    if not any(vectors.labels):
        raise ServingError(
            f"{file} has no classes in {', '.join(LABELS)}; it has {', '.join(vectors.columns)}: name the column of "
            "the classes with --label."
        )
    gallery, calibration = vectors.parts
    if queries is not None:
        calibration = read_vectors(queries, label=label, group=group)
        if (calibration.hits is None) != (vectors.hits is None):
            raise ServingError(f"of {file} and {queries} one holds vectors, one lists of an index; give two alike.")
        if calibration.hits is None:
            _check_dimensions(vectors, calibration)
        calibration = calibration.hits or calibration
    elif calibration is None and (group or trained is not None):
        gallery, calibration = held_out(vectors, trained)
        log.info("%d rows calibrate, chosen with seed 0; the other %d are the gallery", len(calibration), len(gallery))
    if calibration is not None and trained is not None:
        calibration = _fresh(calibration, trained)
    return gallery, calibration


def _check_dimensions(vectors: Vectors, others: Vectors) -> None:
    if others.rows.shape[1] != vectors.rows.shape[1]:
        raise ServingError(
            f"{others.file} has vectors of {others.rows.shape[1]} dimensions, {vectors.file} of "
            f"{vectors.rows.shape[1]}: they are no vectors of one model."
        )


def warn_of_bursts(vectors: Vectors) -> None:
    """Warn if calibration rows look as if they came in groups, and no groups are named."""
    if vectors.groups is None and any(vectors.labels):
        hits = INDICES in vectors.columns or SIMILARITIES in vectors.columns
        rows = np.ones((1, 1)) if hits else directions(vectors.rows[:SEEN])
        sentence = burst_sentence(rows, None if hits else np.array(vectors.labels[:SEEN]), vectors.columns)
        if sentence:
            log.warning("%s: %s (--group COLUMN)", vectors.file, sentence)


def _fresh(queries: Vectors, trained: Vectors) -> Vectors:
    """Return the queries that the model was not trained on.

    Raises:
        CertificateError: it was trained on all of them.
    """
    seen = copies_of(directions(queries.rows), directions(trained.rows))
    if seen.all():
        raise CertificateError(f"the model was trained on all of the {len(seen)} calibration queries; label others.")
    if seen.any():
        log.warning("%d of %d calibration queries are among those trained on and are left out", seen.sum(), len(seen))
    return queries.rows_where(~seen)


def held_out(vectors: Vectors, trained: Vectors | None) -> tuple[Vectors, Vectors]:
    """Return gallery and calibration rows: a third of the groups, or of the rows, drawn with seed 0, calibrates.

    Every class stays in the gallery. Rows that the model was trained on do not calibrate.

    Args:
        vectors: rows without splits.
        trained: the model's training rows; None: no row of this file.

    Raises:
        ServingError: no rows can be held out.
    """
    groups = np.arange(len(vectors)) if vectors.groups is None else vectors.groups
    seen = (
        np.zeros(len(vectors), dtype=bool)
        if trained is None
        else copies_of(directions(vectors.rows), directions(trained.rows))
    )
    names, numbers = np.unique(groups, return_inverse=True)
    classes = [set[str]() for _ in names]
    for number, label in zip(numbers.tolist(), vectors.labels, strict=True):
        classes[number].add(label)
    left = Counter(label for shown in classes for label in shown)
    fresh = np.setdiff1d(np.arange(len(names)), numbers[seen])
    chosen: set[int] = set()
    for number in np.random.default_rng(0).permutation(fresh).tolist():
        if len(chosen) < len(names) // HELD_OUT and all(left[label] > 1 for label in classes[number]):
            chosen.add(number)
            left.subtract(classes[number])
    if not chosen:
        raise ServingError(
            f"{vectors.file}: no row can calibrate: each is the only group of its class, or the model was trained on "
            "it. Give labelled queries as the second file."
        )
    out = np.isin(numbers, list(chosen))
    return vectors.rows_where(~out), vectors.rows_where(out)


def gallery_folder(file: Path) -> Path:
    """Return the folder that keeps the gallery of a file of vectors."""
    return file.with_name(f"{file.name}.gallery")


def gallery_of(vectors: Vectors) -> Gallery:
    """Return the gallery of a file: the stored one, with its certificates, if it holds the same vectors.

    The rows of `vectors` are divided by their norms in place, to save memory.
    """
    if vectors.hits is not None:
        gallery = Gallery.from_labels(vectors.labels, vectors.names, depth=vectors.depth)
    else:
        gallery = Gallery()
        gallery.take(directions(vectors.rows, overwrite=True), vectors.names, vectors.labels)
    folder = gallery_folder(vectors.file)
    if present(folder / INDEX):
        try:
            stored = Gallery.open(folder)
        except (FileError, CertificateError) as error:
            raise ServingError(
                f"{error} Here: remove the folder {folder} and certify again; which scores were tried goes with it."
            ) from error
        if stored.digest == gallery.digest:
            return stored
        gallery.tried = stored.tried  # tries of a calibration set count for every gallery
    return gallery
