"""Find the files in `data/raw` by name (archives or extracted folders), check them, and unpack them when needed.

For the user's own files, `summary.json` holds one digest of names and contents, `raw_content`. Reading every file at
every planning would take seconds, so the digest is kept beside the prepared folder together with a listing of the files
(names, sizes, times, inode numbers). Files are read again only if the listing differs (if files swap names, their
inodes differ), and the data are prepared again only if the contents differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from probmetric.data.archives import extract
from probmetric.data.manifest import DataError
from probmetric.io import FileError, digest_of, read_json, remembered_json, sha256_file, write_json

RECORD = ".probmetric-digests.json"


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
        homes: for datasets whose files have common names, the only subfolders searched; `folder` may lie in one.
        listed: folder -> its subfolders and theirs, kept because a dataset may have many.
    """

    name: str
    folder: Path | None
    work: Path
    subset: bool = False
    progress: bool = False
    notes: list[str] = field(default_factory=list)
    homes: tuple[str, ...] = ()
    listed: dict[Path, list[Path]] = field(default_factory=dict)

    def users_file(self, kinds: Sequence[str]) -> Path:
        """Return the user's own file, which ends in one of `kinds`."""
        file = self.folder
        if file is None or file.suffix.lower() not in kinds or not file.is_file():
            wrong = f"{file or 'raw'} is no file, or ends in none of {', '.join(kinds)}"
            raise DataError(f"{self.name}: {wrong}; set `raw` to yours.")
        return file

    def users_folder(self) -> Path:
        """Return the folder of the user's own images."""
        if self.folder is None or not self.folder.is_dir():
            raise DataError(
                f"{self.name}: {self.folder or 'no folder'} is no folder; set `raw` to that of your images."
            )
        return self.folder

    def candidates(self, relative: str) -> Iterator[Path]:
        """Yield the places where a file or folder `relative` may lie, the best first."""
        if self.folder is None:
            return
        for home in self.homes or (self.name,):
            yield from self._below(self.folder / home, relative)
        if not self.homes or {*self.folder.parts} & {*self.homes}:
            yield self.folder / relative
        if not self.homes:
            yield from self._below(self.folder, relative)

    def find(self, markers: Sequence[str], archives: Sequence[RawFile]) -> Path:
        """Return the folder under which one of the relative paths `markers` exists, unpacking `archives` if it must.

        Raises:
            DataError: no such folder was found; the message lists the expected files and places.
        """
        folder = self.look(markers)
        if folder is not None:
            return folder
        unpacked = [self.unpack(path, archive) for archive in archives for path in self.files(archive.name)]
        folder = _holder(
            (path, marker) for root in unpacked for marker in markers for path in self._below(root, marker)
        )
        if folder is None:
            raise self.missing(markers, archives, unpacked)
        return folder

    def look(self, markers: Sequence[str]) -> Path | None:
        """Return the extracted folder under which one of `markers` exists; None if there is none."""
        return _holder((path, marker) for marker in markers for path in self.candidates(marker))

    def files(self, name: str) -> list[Path]:
        """Return raw files called `name` (at most one)."""
        return [path for path in self.candidates(name) if path.is_file()][:1]

    def checked(self, file: RawFile) -> Path:
        """Return the raw file, compared with its published digest.

        Raises:
            DataError: the file is missing, or has another digest.
        """
        for path in self.files(file.name):
            self.check(path, file)
            return path
        raise self.missing([file.name], [file], [])

    def unpack(self, path: Path, file: RawFile) -> Path:
        """Check an archive and unpack it into the work folder."""
        self.check(path, file)
        return extract(path, self.work / "unpacked" / path.name, progress=self.progress)

    def check(self, path: Path, file: RawFile) -> None:
        """Compare a file with its published digest, else with the one recorded when it was first seen."""
        record_path, state = path.parent / RECORD, _state(path)
        record = _read_record(record_path)
        seen = record.get(path.name, {})
        published = bool(file.md5) and not self.subset
        if seen.get("state") == state and seen.get("published", False) >= published:
            return
        if published and (md5 := _md5(path)) != file.md5:
            raise DataError(
                f"{path} is not the published file: MD5 {md5}, published {file.md5} ({state[0]:,} bytes). The "
                "download is incomplete or another version; get it again, or set the option subset: true to accept it."
            )
        sha256 = sha256_file(path)
        if seen and seen["sha256"] != sha256:
            raise DataError(
                f"{path} changed since it was first used: SHA-256 {sha256[:12]}..., recorded "
                f"{seen['sha256'][:12]}... in {record_path}. Restore it, or delete that record to accept the new file."
            )
        try:
            entry = {"state": state, "sha256": sha256, "published": published}
            write_json(record_path, record | {path.name: entry})
        except FileError:
            self.notes.append(f"{path.parent} is read-only: the digest of {path.name} is not recorded")

    def _below(self, place: Path, relative: str) -> Iterator[Path]:
        """Yield `relative` in `place`, in its subfolders and in theirs, sorted; folders are listed once."""
        yield place / relative
        if place not in self.listed:
            inside = _subfolders(place)
            self.listed[place] = [*inside, *(below for folder in inside for below in _subfolders(folder))]
        yield from (folder / relative for folder in self.listed[place])

    def missing(self, markers: Sequence[str], archives: Sequence[RawFile], unpacked: Sequence[Path]) -> DataError:
        """Make the error that lists the expected files."""
        homes = self.homes or (self.name, "")
        where = " or ".join(str(self.folder / home) for home in homes) if self.folder else "--raw"
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


def _subfolders(place: Path) -> list[Path]:
    """Return the folders in `place` that are not hidden, sorted; none where it is no folder that can be read."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        return sorted(place / entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    return []


def _holder(places: Iterable[tuple[Path, str]]) -> Path | None:
    """Return the folder that the first existing path is relative to; `places` are pairs (path, relative)."""
    return next((path.parents[len(Path(name).parts) - 1] for path, name in places if path.exists()), None)


def _read_record(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    advice = "delete it: digests are recorded again"
    record: dict[str, dict[str, Any]] = read_json(path, advice)
    if not isinstance(record, dict) or not all(isinstance(e, dict) and "sha256" in e for e in record.values()):
        raise DataError(f"{path} is damaged (no record of files); {advice}.")
    return record


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def raw_content(root: Path, names: Sequence[str], prepared: Path) -> str:
    """Return the digest of the names and contents of the user's own files; "" where there are none.

    Args:
        root: their folder.
        names: their paths below it, as `Source.raw_files` lists them.
        prepared: the prepared folder, beside which the listing is kept.
    """
    if not names:
        return ""
    listing = digest_of([(name, *_state(root / name)) for name in sorted(names)])
    seen = prepared.parent / f".{prepared.name}.raw.json"
    kept = remembered_json(seen)
    if isinstance(kept, dict) and kept.get("listing") == listing and isinstance(kept.get("content"), str):
        return str(kept["content"])
    content = digest_of([[name, _content(root / name)] for name in sorted(names)])
    with contextlib.suppress(OSError, FileError):  # without a stored listing, files are read again next time
        seen.parent.mkdir(parents=True, exist_ok=True)
        write_json(seen, {"listing": listing, "content": content})
    return content


def _state(path: Path) -> list[int]:
    """Return a file's size, the times of its last change of content and of inode, and its inode number; else zeros."""
    try:
        status = path.stat()
    except OSError:
        return [0, 0, 0, 0]
    regular = stat.S_ISREG(status.st_mode)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino] if regular else [0, 0, 0, 0]


def _content(path: Path) -> str:
    """Return the SHA-256 of a file; "" if it cannot be read or is no regular file (reading a pipe may never end)."""
    try:
        return sha256_file(path) if path.is_file() else ""
    except (OSError, FileError):
        return ""
