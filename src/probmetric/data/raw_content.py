"""What a dataset of the user's own was prepared from: one digest of the names and contents of its raw files.

`summary.json` holds it as `raw_content`. Reading every file at every planning would take seconds, so what a listing
(names, sizes, times) has led to is kept beside the prepared folder: times decide what is read, contents what counts.
"""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.io import FileError, digest_of, remembered_json, write_json

if TYPE_CHECKING:
    from probmetric.data.raw import RawFiles
    from probmetric.data.sources import Source


def raw_content(source: Source, files: RawFiles, prepared: Path) -> str:
    """Digest of the names and contents of the user's own files that `source` reads; "" where it reads none.

    Args:
        source: what prepares the dataset.
        files: where its raw files lie.
        prepared: the prepared folder, beside which the listing is kept.

    Raises:
        DataError: the source cannot list its files.
    """
    root, names = source.raw_files(files)
    if not names:
        return ""
    listing = [(name, *_state(root / name)) for name in sorted(names)]
    listed, seen = digest_of(listing), _seen_file(prepared)
    known = _known(seen)
    if known.get("listing") != listed:
        known = {"listing": listed, "content": digest_of([[name, _content(root / name)] for name, *_ in listing])}
        _keep(seen, known)
    return known["content"]


def _seen_file(prepared: Path) -> Path:
    return prepared.parent / f".{prepared.name}.raw.json"


def _known(seen: Path) -> dict[str, str]:
    """What was kept; nothing where it is not there, or is damaged."""
    found = remembered_json(seen)
    sound = isinstance(found, dict) and all(isinstance(found.get(name), str) for name in ("listing", "content"))
    return found if sound else {}


def _keep(seen: Path, known: dict[str, str]) -> None:
    """Keep it where the folder can be written to; elsewhere the files are read again next time."""
    try:
        seen.parent.mkdir(parents=True, exist_ok=True)
        write_json(seen, known)
    except (OSError, FileError):
        return


def _state(path: Path) -> tuple[int, int]:
    """Size and time of the last change of a file; zeros where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else (0, 0)


def _content(path: Path) -> str:
    """SHA-256 of a file, "" of what is none or cannot be read."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return ""
        with path.open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
