"""Check a prepared dataset (`doctor`): do its files agree with what it says of itself?"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from probmetric.data.manifest import (
    MANIFEST,
    SPLITS,
    SUMMARY,
    counted,
    read_columns,
    read_summary,
    rebuild_advice,
    verify_digest,
)
from probmetric.data.store import ImageStore
from probmetric.io import FileError

SHOWN = 3
_Columns = dict[str, np.ndarray]


def doctor(folder: str | Path) -> list[str]:
    """Check a prepared dataset completely (every byte is read).

    Checked: the digest; index and labels 0-based and contiguous; split names; splits disjoint in class (open-set)
    or image (closed-set); no image, by SHA-256, in two splits; every image's stored bytes; label noise in the
    training split only and at the declared rate; counts as in summary.json; encoded images can be decoded.

    Returns:
        What is wrong, with file and fix; empty when the folder is healthy.
    """
    folder = Path(folder)
    advice = rebuild_advice(folder)
    findings = []
    try:
        verify_digest(folder, quick=False)
    except FileError as error:
        findings.append(_with_advice(folder, error, advice))
    try:
        columns, metadata = read_columns(folder)
        summary, store = read_summary(folder), ImageStore(folder)
    except FileError as error:
        return [*findings, _with_advice(folder, error, advice)]
    clean = columns.get("clean_label", columns["label"])
    in_manifest = [*_wrong_columns(columns, clean), *_wrong_splits(columns, clean, metadata), *_repeats(columns)]
    in_manifest += _wrong_noise(columns, metadata) if "clean_label" in columns else []
    problems = [(folder / MANIFEST, text) for text in in_manifest]
    problems += [(folder / SUMMARY, text) for text in _wrong_counts(columns, clean, summary)]
    problems += [(store.path, text) for text in _wrong_pixels(columns, store)]
    return findings + [f"{file}: {text}; {advice}." for file, text in problems]


def _with_advice(folder: Path, error: FileError, advice: str) -> str:
    """Return an error as a finding that names the folder and the advice once."""
    text = str(error).rstrip(".").removesuffix(f"; {advice}").removeprefix(f"{folder}/")
    return f"{folder}: {text}; {advice}."


def _wrong_columns(columns: _Columns, clean: np.ndarray) -> Iterator[str]:
    if not np.array_equal(columns["index"], np.arange(len(clean))):
        yield f"column index is not 0..{len(clean) - 1}"
    labels = np.unique(clean)
    gaps = np.setdiff1d(np.arange(labels.max(initial=0) + 1), labels)[:SHOWN].tolist()
    if not np.array_equal(labels, np.arange(len(labels))):
        yield (
            f"labels run from {labels.min(initial=0)} to {labels.max(initial=0)}, missing {gaps}; they must be 0-based "
            "and contiguous"
        )


def _wrong_splits(columns: _Columns, clean: np.ndarray, metadata: dict[str, Any]) -> Iterator[str]:
    split = columns["split"]
    unknown = sorted({str(name) for name in split} - set(SPLITS))
    if unknown:
        yield f"split has values {unknown}; allowed: {', '.join(SPLITS)}"
    for first, second in itertools.combinations(SPLITS, 2) if metadata.get("protocol") == "open_set" else ():
        both = np.intersect1d(clean[split == first], clean[split == second])
        if len(both):
            yield f"{len(both)} classes are in both {first} and {second} (labels {both[:SHOWN].tolist()} ...)"


def _repeats(columns: _Columns) -> Iterator[str]:
    split = np.unique(columns["split"].astype(str), return_inverse=True)[1]
    for name in ("sha256", "path"):
        key = np.unique(columns[name].astype(str), return_inverse=True)[1]
        repeated = np.flatnonzero(np.bincount(np.unique(np.stack([key, split]), axis=1)[0]) > 1)
        if len(repeated):
            rows = np.flatnonzero(key == repeated[0])[:SHOWN].tolist()
            yield f"{len(repeated)} image(s) are in two splits by {name} (rows {rows} ...)"


def _wrong_noise(columns: _Columns, metadata: dict[str, Any]) -> Iterator[str]:
    label, clean, train = columns["label"], columns["clean_label"], columns["split"] == "train"
    outside = np.flatnonzero((label != clean) & ~train)
    if len(outside):
        yield f"{len(outside)} labels outside train are noisy (rows {outside[:SHOWN].tolist()} ...)"
    foreign = np.setdiff1d(label[train], clean[train])
    if len(foreign):
        yield f"noisy labels {foreign[:SHOWN].tolist()} are no training classes"
    realised, declared = float((label != clean)[train].mean()), metadata.get("noise", {}).get("realised_rate")
    if declared is None or abs(realised - declared) > 1e-9:
        yield f"realised noise rate is {realised:.4f}, declared {declared}"


def _wrong_counts(columns: _Columns, clean: np.ndarray, summary: dict[str, Any]) -> Iterator[str]:
    for key, value in counted(clean, columns["split"]).items():
        if summary.get(key) != value:
            yield f"{key} declared {summary.get(key)}, the manifest has {value}"


def _wrong_pixels(columns: _Columns, store: ImageStore) -> Iterator[str]:
    """Compare every image with its digest; decode stored files, of which preparation read only header and end."""
    expected = columns["sha256"]
    wrong = [i for i in range(len(store)) if hashlib.sha256(store.stored(i).tobytes()).hexdigest() != expected[i]]
    if wrong:
        names = [f"{i} ({columns['path'][i]})" for i in wrong[:SHOWN]]
        yield f"{len(wrong)} image(s) differ from their SHA-256 in the manifest: {', '.join(names)}"
    for row in range(len(store)) if store.encoded else ():
        try:
            store[row]
        except FileError as error:
            yield str(error).rstrip(".")
