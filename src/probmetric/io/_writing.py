"""Writing: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probmetric.io._reading import FileError, read_problem

log = logging.getLogger(__name__)

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EROFS: "the file system is read-only; mount it writable or choose another folder",
    errno.EACCES: "the folder is not writable; change its permissions (chmod u+w) or its owner",
    errno.EPERM: "writing is not permitted; change the folder's permissions or owner",
    errno.EEXIST: "a file or link stands where a folder belongs; name another place, or move it away",
    errno.ENOTDIR: "a file stands where a folder belongs; name another place, or move it away",
    errno.EFBIG: "the file would exceed the size allowed (ulimit -f); raise the limit and run the same command again",
}


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; on success it is flushed and renamed to `path`, else removed.

    Readers see the old file or the new one, never half of it, also after a power cut or SIGKILL.

    Raises:
        FileError: disk full, read-only file system or missing permission, with the fix.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        handle, temporary = _temporary(path)
    except OSError as error:
        raise _write_problem(path, error) from error
    try:
        yield temporary
        _flush(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise _write_problem(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


def _temporary(path: Path) -> tuple[int, Path]:
    """A new temporary sibling of `path`, locked while its writer lives."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        if _lock(handle) is not False and Path(name).exists():
            return handle, Path(name)
        os.close(handle)  # another writer took it for abandoned before it was locked


def _remove_abandoned(path: Path) -> None:
    """Remove temporary siblings of `path` whose writers were killed: nobody holds their lock any more."""
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        if not (name.startswith(f".{path.name}.") and name.endswith(".tmp")):
            continue
        with contextlib.suppress(OSError):
            handle = os.open(path.parent / name, os.O_RDWR)
            try:
                if _lock(handle):
                    (path.parent / name).unlink()
            finally:
                os.close(handle)


@contextlib.contextmanager
def alone(path: str | Path, doing: str = "", *, wait: bool = True) -> Iterator[None]:
    """Hold the right to change what is at `path`, waiting for another process that does; a killed one holds nothing.

    Args:
        path: the file or folder; the lock lies beside it, `.NAME.lock`.
        doing: what the other process does, for the message; empty: it changes `path`.
        wait: False: an error where another process holds the right.

    Raises:
        FileError: no lock can be written beside it, with the fix; or another process holds the right.
    """
    lock = Path(path).parent / f".{Path(path).name}.lock"
    doing = doing or f"changes {path}"
    while True:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = lock.open("a")
        except OSError as error:
            raise _write_problem(lock, error) from error
        with file:
            if file.tell():
                raise FileError(f"{lock} is needed as a lock, and is a file with content; move it away.")
            if _lock(file.fileno()) is False:
                if not wait:
                    raise FileError(f"another process {doing} (it holds {lock}); wait for it to end.")
                log.warning("another process %s; waiting for it", doing)
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is(lock, file.fileno()):  # else the process before took the lock's file away
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return


def _is(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> bool | None:
    """Whether the file is now locked by `handle`; None where the file system knows no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _write_problem(path: Path, error: OSError) -> FileError:
    advice = _ADVICE.get(error.errno or 0, "nothing was written there")
    return FileError(f"cannot write {path}: {error.strerror or error}; {advice}.")


def problem_with(path: str | Path, error: OSError) -> FileError:
    """What to say, and to do, where `path` was to be read or written, whichever the error is one of."""
    written = (set(_ADVICE) | {errno.ENOTEMPTY}) - {errno.EACCES, errno.EPERM}
    return _write_problem(Path(path), error) if error.errno in written else read_problem(path, error)


def remove(path: str | Path) -> None:
    """Remove a file, if it is there.

    Raises:
        FileError: read-only file system or missing permission, with the fix.
    """
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise _write_problem(Path(path), error) from error


def write_text(path: str | Path, text: str) -> None:
    """Write `text` (UTF-8) to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinities are refused (write None)."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_yaml(path: str | Path, value: Any) -> None:
    """Write `value` as YAML in the order given, atomically."""
    import yaml

    write_text(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110))
