"""What the user put into `data/raw`: archives or extracted folders, found by name, checked, unpacked when needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probmetric.data.archives import extract
from probmetric.data.manifest import DataError
from probmetric.io import FileError, read_json, write_json

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
