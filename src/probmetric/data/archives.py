"""Unpack archives from unknown people safely: no file outside the target, no links, no bombs, no half-done folders.

An archive is refused, and the error names the member, for absolute paths, `..`, drive letters, links and devices,
names that are not UTF-8, a member that occurs twice (or a file where another needs a folder), damaged or truncated
data, more than 200 times the archive's size (or more than the disk holds), or more members than one per 64 bytes of the
archive (100,000 are always allowed). macOS resource forks (`._x`, `__MACOSX`) are skipped. The target folder appears,
by rename, once everything is unpacked; an interrupted extraction starts over.
"""

from __future__ import annotations

import gzip
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO, Any

from probmetric.data.image_file import progress_bar
from probmetric.data.manifest import DataError, is_utf8, stays_inside

MAX_RATIO, MIN_LIMIT = 200, 256 * 2**20
MIN_MEMBER, MEMBERS = 64, 100_000
DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, LZMAError),
    *(EOFError, NotImplementedError, ValueError, OverflowError, struct.error),
)
_Member = tuple[str, int, IO[bytes]]


def extract(archive: Path, target: Path, *, progress: bool = False) -> Path:
    """Unpack `archive` into the new folder `target` and return `target`; an existing `target` is returned at once.

    Raises:
        DataError: the archive is damaged, hostile or too large; names the member and the fix.
    """
    if target.is_dir():
        return target
    partial = target.with_name(target.name + ".unpacking")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    allowed = max(archive.stat().st_size // MIN_MEMBER, MEMBERS)
    members = _zip_members if zipfile.is_zipfile(archive) else _tar_members
    name, left = "(start)", unpacked_limit(archive, partial)
    bar = progress_bar(f"unpack {archive.name}", progress, unit="B", unit_scale=True)
    try:
        for number, (name, size, stream) in enumerate(members(archive), start=1):
            if number > allowed:
                raise _hostile(archive, name, f"is one too many: more than {allowed:,} for an archive of this size")
            if path := _inside(archive, partial, name):
                left = copy_limited(archive, name, stream, path, left)
                bar.update(size)
    except DAMAGE as error:
        raise DataError(
            f"{archive} is damaged or truncated (after member {name!r}: {error}); get it again, or compare its size "
            "and digest with the source's."
        ) from error
    finally:
        bar.close()
    partial.rename(target)
    return target


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            if (info.external_attr >> 16) & 0o170000 == 0o120000:
                raise _hostile(archive, info.filename, "is a symbolic link")
            if info.flag_bits & 1:
                raise DataError(f"{archive}: member {info.filename!r} is encrypted; unpack it yourself.")
            if not info.is_dir():
                with file.open(info) as stream:
                    yield info.filename, info.file_size, stream


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive, "r|*") as file:
        for info in file:
            if not info.isfile() and not info.isdir():
                raise _hostile(archive, info.name, "is a link or a device")
            if stream := file.extractfile(info):
                yield info.name, info.size, stream


def _inside(archive: Path, folder: Path, name: str) -> Path | None:
    """Return where member `name` goes; None if it is skipped."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not is_utf8(name):
        raise _hostile(archive, name, "has a name that is not UTF-8")
    if not stays_inside(name):
        raise _hostile(archive, name, "would be written outside the target folder")
    if not parts or "__MACOSX" in parts or parts[-1].startswith("._"):
        return None
    return folder.joinpath(*parts)


def unpacked_limit(archive: Path, folder: Path) -> int:
    """Return how many bytes `archive` may unpack to in `folder`."""
    return min(max(MAX_RATIO * archive.stat().st_size, MIN_LIMIT), shutil.disk_usage(folder).free)


def copy_limited(archive: Path, name: str, stream: Any, path: Path, left: int) -> int:
    """Write member `name` of `archive`, the bytes of `stream`, to the new file `path`.

    Returns:
        How many bytes may still be written, of `left`.

    Raises:
        DataError: the member has more than `left` bytes, or `path` exists already.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("xb")
    except (FileExistsError, NotADirectoryError) as error:
        raise _hostile(archive, name, "has the name of an earlier member, or of a folder that one needs") from error
    with file:
        while block := stream.read(2**20):
            left -= len(block)
            if left < 0:
                raise _hostile(archive, name, "exceeds what the archive may unpack to (a decompression bomb?)")
            file.write(block)
    return left


def _hostile(archive: Path, name: str, what: str) -> DataError:
    return DataError(
        f"{archive}: member {name!a} {what}; this is not the published archive. Get it from its original source, or "
        "unpack it yourself and keep the folder in its place."
    )
