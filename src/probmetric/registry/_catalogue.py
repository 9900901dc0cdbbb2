"""Entries on disk: the catalogue shipped with the package, and what was found out since, below state/.

An entry counts while the source it was read from is the same. A component whose file is new or changed is imported
once; inside a project (a folder with params.yaml) the answer is kept in state/components/.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probmetric.io import remembered_json

SHIPPED = Path(__file__).with_name("catalogue.json")
PROJECT = Path("params.yaml")
FOUND = Path("state/components")
_DIGITS = 16


def source_digest(paths: Iterable[Path]) -> str:
    """Digest of the files at `paths`, in their order."""
    found = hashlib.sha256()
    for path in paths:
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:_DIGITS]


@functools.cache
def _shipped() -> Mapping[str, Any]:
    return json.loads(SHIPPED.read_text(encoding="utf-8")) if SHIPPED.is_file() else {}


def shipped(kind: str, name: str, shared: str, own: str) -> Mapping[str, Any] | None:
    """The shipped entry of a component, if it was read from sources with the digests `shared` and `own`."""
    section = _shipped().get(kind, {"shared": "", "components": {}})
    entry = section["components"].get(name)
    return entry if entry and (section["shared"], entry["digest"]) == (shared, own) else None


def found(name: str, digest: str) -> Any:
    """What was kept under `name` for sources with `digest`, or None."""
    path = FOUND / f"{name}.json"
    if not PROJECT.is_file() or not path.is_file():
        return None
    kept = remembered_json(path)
    return kept["found"] if isinstance(kept, dict) and kept.get("digest") == digest else None


def keep(name: str, digest: str, value: Any) -> None:
    """Keep `value` under `name` for sources with `digest`; outside a project nothing is written."""
    from probmetric.io import FileError, write_json

    if PROJECT.is_file():
        with contextlib.suppress(FileError):  # a project that cannot be written to is read all the same
            write_json(FOUND / f"{name}.json", {"digest": digest, "found": value})
