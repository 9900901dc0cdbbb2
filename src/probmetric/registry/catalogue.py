"""Entries on disk: the catalogue shipped with the package, and what was read since, below state/.

An entry counts while the source it was read from is the same. A component whose file is new or changed is imported
once; inside a project (a folder with params.yaml) its entry is then kept in state/components/.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probmetric.io import FileError, remembered_json, write_json

SHIPPED = Path(__file__).with_name("catalogue.json")
PROJECT = Path("params.yaml")
KEPT = Path("state/components")
_DIGITS = 16


def source_digest(paths: Iterable[Path]) -> str:
    """Return the digest of the files at `paths`, in their order."""
    total = hashlib.sha256()
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:_DIGITS]


@functools.cache
def _shipped() -> Mapping[str, Any]:
    kept = remembered_json(SHIPPED)
    return kept if isinstance(kept, dict) else {}


def shipped(kind: str, name: str, shared: str, source: str) -> Mapping[str, Any] | None:
    """Return the shipped entry of a component, if it was read from sources with the digests `shared` and `source`."""
    section = _shipped().get(kind, {"shared": "", "components": {}})
    entry = section["components"].get(name)
    return entry if entry and (section["shared"], entry["digest"]) == (shared, source) else None


def read(name: str, digest: str) -> Any:
    """Return what was kept under `name` for sources with `digest`, or None."""
    path = KEPT / f"{name}.json"
    if not PROJECT.is_file() or not path.is_file():
        return None
    note = remembered_json(path)
    return note.get("entries") if isinstance(note, dict) and note.get("digest") == digest else None


def keep(name: str, digest: str, entries: Any) -> None:
    """Keep `entries` under `name` for sources with `digest`; outside a project nothing is written."""
    if PROJECT.is_file():
        with contextlib.suppress(FileError):  # a project that cannot be written to is read all the same
            write_json(KEPT / f"{name}.json", {"digest": digest, "entries": entries})
