"""What the user put into `data/raw`: archives or extracted folders, found by name, checked, unpacked when needed.

Of files of the user's own, `summary.json` holds one digest of names and contents, `raw_content`. Reading every file at
every planning would take seconds: beside the prepared folder is kept which listing (names, sizes, times) had which
content. Times decide what is read, contents what counts.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probmetric.data.archives import extract
from probmetric.data.manifest import DataError
from probmetric.io import FileError, digest_of, read_json, remembered_json, write_json

RECORD = ".probmetric-digests.json"
_SEEN = {"size", "mtime_ns", "sha256"}


@dataclass(frozen=True)
class RawFile:
    """A file or archive a dataset is published as.

    Attributes:
        name: its file name.
        md5: its published MD5, "" where none is known.
        size: its size in words, for people.
    """

    name: str
    md5: str = ""
    size: str = ""


@dataclass(frozen=True)
class RawFiles:
    """Access to a dataset's raw files.

    Attributes:
        name: the dataset.
        folder: where the user put things (`data/raw`); its subfolder `<name>` is searched first.
        work: scratch folder that outlives an interruption.
        subset: accept archives and counts other than the published ones.
        progress: show progress bars.
        notes: remarks for summary.json.
        homes: for datasets whose files have common names, the only subfolders searched.
    """

    name: str
    folder: Path | None
    work: Path
    subset: bool = False
    progress: bool = False
    notes: list[str] = field(default_factory=list)
    homes: tuple[str, ...] = ()

    def candidates(self, relative: str) -> Iterator[Path]:
        """Where a file or folder `relative` may lie, best place first."""
        if self.folder is None:
            return
        for home in self.homes or (self.name,):
            yield from _below(self.folder / home, relative)
        yield self.folder / relative
        if not self.homes:
            yield from _below(self.folder, relative)

    def find(self, markers: Sequence[str], archives: Sequence[RawFile]) -> Path:
        """Folder under which one of the relative paths `markers` exists, unpacking `archives` if it must.

        Raises:
            DataError: nothing was found; lists what is expected and where.
        """
        folder = self.look(markers)
        if folder is not None:
            return folder
        unpacked = [self.unpack(path, archive) for archive in archives for path in self.files(archive.name)]
        for root in unpacked:
            found = _holding(root, markers)
            if found is not None:
                return found
        raise self.missing(markers, archives, unpacked)

    def look(self, markers: Sequence[str]) -> Path | None:
        """Extracted folder under which one of `markers` exists; None if there is none."""
        for marker in markers:
            for path in self.candidates(marker):
                if path.exists():
                    return _above(path, marker)
        return None

    def files(self, name: str) -> list[Path]:
        """Raw files called `name` (at most one)."""
        return [path for path in self.candidates(name) if path.is_file()][:1]

    def checked(self, file: RawFile) -> Path:
        """Return the raw file, compared with its published digest.

        Raises:
            DataError: it is not there, or is another file.
        """
        for path in self.files(file.name):
            self.check(path, file)
            return path
        raise self.missing([file.name], [file], [])

    def unpack(self, path: Path, known: RawFile) -> Path:
        """Check an archive and unpack it into the work folder."""
        self.check(path, known)
        return extract(path, self.work / "unpacked" / path.name, progress=self.progress)

    def check(self, path: Path, known: RawFile) -> None:
        """Compare a file with its published digest, else with the one recorded when it was first seen."""
        record_path = path.parent / RECORD
        record = _read_record(record_path)
        state = path.stat()
        seen = record.get(path.name)
        if seen and seen["size"] == state.st_size and seen["mtime_ns"] == state.st_mtime_ns:
            return
        md5, sha256 = _digests(path)
        if known.md5 and md5 != known.md5 and not self.subset:
            raise DataError(
                f"{path} is not the published file: MD5 {md5}, published {known.md5} ({state.st_size:,} bytes). The "
                "download is incomplete or another version; get it again, or set the option subset: true to accept it."
            )
        if seen and seen["sha256"] != sha256:
            raise DataError(
                f"{path} changed since it was first used: SHA-256 {sha256[:12]}..., recorded "
                f"{seen['sha256'][:12]}... in {record_path}. Restore it, or delete that record to accept the new file."
            )
        record[path.name] = {"size": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": sha256}
        try:
            write_json(record_path, record)
        except FileError:
            self.notes.append(f"{path.parent} is read-only: the digest of {path.name} is not recorded")

    def missing(self, markers: Sequence[str], archives: Sequence[RawFile], unpacked: Sequence[Path]) -> DataError:
        """The error that says what is expected."""
        where = " or ".join(str(place) for place in (self.folder / self.name, self.folder)) if self.folder else "--raw"
        if unpacked:
            return DataError(
                f"{self.name}: the archive {unpacked[0].name} does not contain {' or '.join(markers)}; it is another "
                "data set or another version."
            )
        wanted = ", ".join(archive.name for archive in archives)
        return DataError(
            f"{self.name}: its files are not in {where}. Put there {wanted or 'the files'}, or the extracted "
            f"folder that holds {' or '.join(markers)}; `probmetric data status` lists what every dataset needs."
        )


def _below(place: Path, relative: str) -> Iterator[Path]:
    """`relative` in `place`, in its subfolders and in theirs, sorted."""
    yield place / relative
    for pattern in ("*", "*/*"):
        for folder in sorted(place.glob(pattern)):
            if folder.is_dir() and not folder.name.startswith("."):
                yield folder / relative


def _above(path: Path, relative: str) -> Path:
    """The folder `path` is `relative` to."""
    return path.parents[len(Path(relative).parts) - 1]


def _holding(place: Path, markers: Sequence[str]) -> Path | None:
    for marker in markers:
        for path in _below(place, marker):
            if path.exists():
                return _above(path, marker)
    return None


def _read_record(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    advice = "delete it: digests are recorded again"
    record: dict[str, dict[str, Any]] = read_json(path, advice)
    if not isinstance(record, dict) or not all(isinstance(e, dict) and e.keys() >= _SEEN for e in record.values()):
        raise DataError(f"{path} is damaged (no record of files); {advice}.")
    return record


def _digests(path: Path) -> tuple[str, str]:
    """MD5 and SHA-256 of a file, read once."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            md5.update(block)
            sha256.update(block)
    return md5.hexdigest(), sha256.hexdigest()


def raw_content(root: Path, names: Sequence[str], prepared: Path) -> str:
    """Return the digest of the names and contents of the user's own files; "" where there are none.

    Args:
        root: their folder.
        names: their paths below it, as `Source.raw_files` lists them.
        prepared: the prepared folder, beside which the listing is kept.
    """
    if not names:
        return ""
    listing = [(name, *_state(root / name)) for name in sorted(names)]
    listed, seen = digest_of(listing), _seen_file(prepared)
    known = _seen_before(seen)
    if known.get("listing") != listed:
        known = {"listing": listed, "content": digest_of([[name, _content(root / name)] for name, *_ in listing])}
        _keep(seen, known)
    return known["content"]


def _seen_file(prepared: Path) -> Path:
    return prepared.parent / f".{prepared.name}.raw.json"


def _seen_before(seen: Path) -> dict[str, str]:
    """Return what was kept; nothing where it is not there, or is damaged."""
    kept = remembered_json(seen)
    sound = isinstance(kept, dict) and all(isinstance(kept.get(name), str) for name in ("listing", "content"))
    return kept if sound else {}


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
        status = path.stat()
    except OSError:
        return 0, 0
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (0, 0)


def _content(path: Path) -> str:
    """SHA-256 of a file, "" of what is none or cannot be read."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return ""
        with path.open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
