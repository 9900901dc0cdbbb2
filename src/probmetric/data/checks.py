"""`doctor`: is a prepared dataset what it says it is?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.data.manifest import (
    MANIFEST,
    SPLITS,
    SUMMARY,
    TYPES,
    read_summary,
    read_table,
    rebuild_advice,
    values_of,
    verify_digest,
)
from probmetric.data.store import ImageStore
from probmetric.io import FileError

SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a prepared dataset."""

    file: str
    value: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}: {self.value}; {self.fix}."


@dataclass(frozen=True)
class _Folder:
    path: Path
    columns: dict[str, np.ndarray]
    metadata: dict[str, Any]
    summary: dict[str, Any]

    @property
    def manifest(self) -> Path:
        return self.path / MANIFEST

    @property
    def clean(self) -> np.ndarray:
        return self.columns.get("clean_label", self.columns["label"])


def doctor(folder: str | Path) -> list[Finding]:
    """Check a prepared dataset completely (every byte is read).

    Checked: the digest; index and labels 0-based and contiguous; split names; splits disjoint in class (open-set)
    or image (closed-set); no image, by SHA-256, in two splits; every image's stored bytes; label noise in the
    training split only and at the declared rate; counts as declared in summary.json; encoded images can be decoded.

    Returns:
        What is wrong, empty when the folder is healthy.
    """
    folder = Path(folder)
    advice = rebuild_advice(folder)
    findings = []
    try:
        verify_digest(folder, quick=False)
    except FileError as error:
        findings.append(_told(folder, error, advice))
    try:
        table, metadata = read_table(folder)
        columns = {name: values_of(table, name) for name in table.column_names}
        opened = _Folder(folder, columns, metadata, read_summary(folder, advice))
        store = ImageStore(folder)
    except FileError as error:
        return [*findings, _told(folder, error, advice)]
    checks: list[Callable[[_Folder], Iterator[tuple[Path, str]]]] = [
        _check_types, _check_labels, _check_splits, _check_repeats, _check_noise, _check_counts,
    ]  # fmt: skip
    problems = [problem for check in checks for problem in check(opened)]
    problems += [*_check_pixels(opened, store), *_check_decoding(store)]
    return findings + [Finding(str(file), value, advice) for file, value in problems]


def _told(folder: Path, error: FileError, advice: str) -> Finding:
    """An error as a finding, which says folder and advice once."""
    return Finding(str(folder), str(error).rstrip(".").removesuffix(f"; {advice}").removeprefix(f"{folder}/"), advice)


def _check_types(folder: _Folder) -> Iterator[tuple[Path, str]]:
    index = folder.columns["index"]
    if not np.array_equal(index, np.arange(len(index))):
        yield folder.manifest, f"column index is not 0..{len(index) - 1}"
    for name in TYPES:
        if folder.columns[name].dtype == object and any(value is None for value in folder.columns[name]):
            yield folder.manifest, f"column {name} has empty cells"


def _check_labels(folder: _Folder) -> Iterator[tuple[Path, str]]:
    found = np.unique(folder.clean)
    if not np.array_equal(found, np.arange(len(found))):
        gaps = np.setdiff1d(np.arange(found.max(initial=0) + 1), found)[:SHOWN].tolist()
        yield (
            folder.manifest,
            f"labels run from {found.min(initial=0)} to {found.max(initial=0)}, missing {gaps}; they must be 0-based "
            "and contiguous",
        )


def _check_splits(folder: _Folder) -> Iterator[tuple[Path, str]]:
    split, label = folder.columns["split"], folder.clean
    unknown = sorted({str(name) for name in split} - set(SPLITS))
    if unknown:
        yield folder.manifest, f"split has values {unknown}; allowed: {', '.join(SPLITS)}"
    if folder.metadata.get("protocol") != "open_set":
        return
    for i, first in enumerate(SPLITS):
        for second in SPLITS[i + 1 :]:
            both = np.intersect1d(label[split == first], label[split == second])
            if len(both):
                shown = both[:SHOWN].tolist()
                yield folder.manifest, f"{len(both)} classes are in both {first} and {second} (labels {shown} ...)"


def _check_repeats(folder: _Folder) -> Iterator[tuple[Path, str]]:
    split, digest, path = (folder.columns[name] for name in ("split", "sha256", "path"))
    for column, values in (("sha256", digest), ("path", path)):
        _, key = np.unique(values.astype(str), return_inverse=True)
        pairs = np.unique(np.stack([key, np.unique(split.astype(str), return_inverse=True)[1]]), axis=1)
        repeated = np.flatnonzero(np.bincount(pairs[0]) > 1)
        if len(repeated):
            rows = np.flatnonzero(key == repeated[0])[:SHOWN].tolist()
            yield folder.manifest, f"{len(repeated)} image(s) are in two splits by {column} (rows {rows} ...)"


def _check_noise(folder: _Folder) -> Iterator[tuple[Path, str]]:
    if "clean_label" not in folder.columns:
        return
    label, clean, split = (folder.columns[name] for name in ("label", "clean_label", "split"))
    outside = np.flatnonzero((label != clean) & (split != "train"))
    if len(outside):
        yield folder.manifest, f"{len(outside)} labels outside train are noisy (rows {outside[:SHOWN].tolist()} ...)"
    train = np.unique(clean[split == "train"])
    foreign = np.setdiff1d(label[split == "train"], train)
    if len(foreign):
        yield folder.manifest, f"noisy labels {foreign[:SHOWN].tolist()} are no training classes"
    realised = float((label != clean)[split == "train"].mean())
    declared = folder.metadata.get("noise", {}).get("realised_rate")
    if declared is None or abs(realised - declared) > 1e-9:
        yield folder.manifest, f"realised noise rate is {realised:.4f}, declared {declared}"


def _check_counts(folder: _Folder) -> Iterator[tuple[Path, str]]:
    split, label = folder.columns["split"], folder.clean
    found: dict[str, Any] = {"images": len(label), "classes": len(np.unique(label))}
    found["splits"] = {
        name: {"images": int((split == name).sum()), "classes": len(np.unique(label[split == name]))} for name in SPLITS
    }
    for key, value in found.items():
        if folder.summary.get(key) != value:
            yield folder.path / SUMMARY, f"{key} declared {folder.summary.get(key)}, the manifest has {value}"


def _check_decoding(store: ImageStore) -> Iterator[tuple[Path, str]]:
    """Originals are prepared by their header and their end; here every one is decoded."""
    for row in range(len(store)) if store.encoded else ():
        try:
            store[row]
        except FileError as error:
            yield store.path, str(error).rstrip(".")


def _check_pixels(folder: _Folder, store: ImageStore) -> Iterator[tuple[Path, str]]:
    expected = folder.columns["sha256"]
    wrong = [i for i in range(len(store)) if hashlib.sha256(store.stored(i).tobytes()).hexdigest() != expected[i]]
    if wrong:
        names = [f"{i} ({folder.columns['path'][i]})" for i in wrong[:SHOWN]]
        yield store.path, f"{len(wrong)} image(s) differ from their SHA-256 in the manifest: {', '.join(names)}"
