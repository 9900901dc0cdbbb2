"""Files: written whole or not at all, read with errors that say what to do, identified by digest.

A file system that hangs (a lost network mount) is noticed when a file is opened: after PROBMETRIC_READ_TIMEOUT
seconds (120) the read ends in an error that names the file, instead of never.
"""

from __future__ import annotations

import _thread
import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.errors import ProbMetricError

if TYPE_CHECKING:
    pass

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EROFS: "the file system is read-only; mount it writable or choose another folder",
    errno.EACCES: "the folder is not writable; change its permissions (chmod u+w) or its owner",
    errno.EPERM: "writing is not permitted; change the folder's permissions or owner",
    errno.EFBIG: "the file would exceed the size allowed (ulimit -f); raise the limit and run the same command again",
}
_READ_ADVICE = {
    errno.EISDIR: "a folder stands where a file belongs; move it away and run the same command again",
    errno.EACCES: "make it readable (chmod u+r; for its folders chmod u+rx), or change its owner",
    errno.EPERM: "make it readable (chmod u+r; for its folders chmod u+rx), or change its owner",
    errno.ELOOP: "its links lead in a circle; delete them",
}
_CHECKSUM = "sha256"
_KINDS = {"bool": "BOOL", "uint8": "U8", "bfloat16": "BF16"} | {
    f"{long}{bits}": f"{short}{bits}"
    for long, short, widths in (("int", "I", (8, 16, 32, 64)), ("float", "F", (16, 32, 64)))
    for bits in widths
}
_LONGEST_HEADER = 100 * 2**20


class FileError(ProbMetricError, RuntimeError):
    """A file cannot be read or written; the message names the file and the fix."""


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


def check_responds(path: str | Path) -> None:
    """Open `path` and read its first byte, within the time allowed; that a file is missing is the reader's to say.

    Raises:
        FileError: no answer in time, no permission, a folder in its place, a link to a missing file; names the file.
    """
    seconds = float(os.environ.get("PROBMETRIC_READ_TIMEOUT", "120"))
    answered = threading.Event()
    problems: list[OSError] = []

    def ask() -> None:
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                file.read(1)
        except OSError as error:
            problems.append(error)
        answered.set()

    _thread.start_new_thread(ask, ())  # Thread.start() would wait for the thread without a limit
    if not answered.wait(seconds):
        raise FileError(
            f"{path} cannot be read: no answer from its file system within {seconds:g} s; check the mount and run the "
            "same command again (PROBMETRIC_READ_TIMEOUT sets the seconds)."
        )
    present(path)
    if problems and not isinstance(problems[0], FileNotFoundError):
        raise read_problem(path, problems[0]) from problems[0]


def present(path: str | Path) -> bool:
    """Whether there is something at `path`: no to a file that may be missing, an error where it should not be.

    Raises:
        FileError: `path` is a link to something that is missing, or the folder it lies in cannot be read.
    """
    try:
        os.stat(path)  # noqa: PTH116 - Path.exists() hides what is wrong, differently in every Python
    except FileNotFoundError:
        if not Path(path).is_symlink():
            return False
        target = os.readlink(path)  # noqa: PTH115
        raise FileError(
            f"{path} is a link to {target}, which is missing; restore that file, or delete the link."
        ) from None
    except NotADirectoryError:
        return False
    except OSError as error:
        raise read_problem(path, error) from error
    return True


def read_problem(path: str | Path, error: OSError) -> FileError:
    """What to say, and to do, when `path` cannot be read."""
    advice = _READ_ADVICE.get(error.errno or 0, "check the disk and the mount, and run the same command again")
    return FileError(f"{path} cannot be read: {error.strerror or error}; {advice}.")


def read_text(path: str | Path, fix: str = "delete it and run again") -> str:
    """Read UTF-8 text; a missing, unreadable or damaged file is a `FileError` that says to `fix` it."""
    check_responds(path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; {fix}.") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is damaged ({error}); {fix}.") from error
    except OSError as error:
        raise read_problem(path, error) from error


def read_csv(
    path: str | Path, fix: str = "delete it and run again", delimiter: str = ","
) -> tuple[list[str], list[dict[str, str]]]:
    """Read a table: the names in its first line, and the other lines as name -> text."""
    try:
        table = csv.DictReader(io.StringIO(read_text(path, fix), newline=""), delimiter=delimiter, strict=True)
        rows = list(table)
    except csv.Error as error:
        raise FileError(f"{path} is damaged ({error}); {fix}.") from error
    names = list(table.fieldnames or ())
    if any(None in row or None in row.values() for row in rows):
        raise FileError(f"{path} is damaged (a line has not {len(names)} columns); {fix}.")
    return names, rows


def read_json(path: str | Path, fix: str = "delete it and run again") -> Any:
    """Read JSON; a missing or damaged file is a `FileError` that says to `fix` it."""
    try:
        return json.loads(read_text(path, fix))
    except (json.JSONDecodeError, RecursionError) as error:
        raise FileError(f"{path} is damaged ({error}); {fix}.") from error


def write_yaml(path: str | Path, value: Any) -> None:
    """Write `value` as YAML in the order given, atomically."""
    import yaml

    write_text(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110))


def read_yaml(path: str | Path, fix: str = "restore it, or run the step that writes it again") -> Any:
    """Read YAML safely (no objects are constructed); errors name the file and the line."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = read_text(path, fix)
    try:
        return yaml.load(text, Loader=loader)  # a safe loader either way
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FileError(f"{path} is not valid YAML: {error}") from error


def sha256_file(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file, read in 1 MiB blocks."""
    check_responds(path)
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; restore it, or run the step that writes it again.") from error
    except OSError as error:
        raise read_problem(path, error) from error


def content_digest(path: str | Path) -> str:
    """Digest of a file's content: the checksum a tensor file carries in its header, else its SHA-256."""
    if Path(path).suffix == ".safetensors":
        with Path(path).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length < _LONGEST_HEADER else b""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(header)["__metadata__"][_CHECKSUM])
    return sha256_file(path)


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON-able value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def write_tensors(path: str | Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write NumPy arrays or torch tensors to a safetensors file, atomically, with a checksum in its header.

    Args:
        path: the file.
        tensors: name -> array (all NumPy, or all torch).
        metadata: text -> text, stored in the file's header.

    Raises:
        ValueError: a type the format does not know.
    """
    ready = {name: _dense(tensor) for name, tensor in tensors.items()}
    header = dict(metadata or {})
    header[_CHECKSUM] = _checksum(ready, header)
    order = sorted(ready, key=lambda name: (-ready[name].itemsize, name))
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(_header({name: ready[name] for name in order}, header))
        for name in order:
            file.write(_raw_bytes(ready[name]))


def tensors_digest(tensors: Mapping[str, Any]) -> str:
    """The checksum `write_tensors` gives these tensors without metadata: `content_digest` of that file."""
    return _checksum({name: _dense(tensor) for name, tensor in tensors.items()}, {})


def _dense(tensor: Any) -> Any:
    """A tensor in main memory, its rows one after another."""
    if hasattr(tensor, "detach"):
        return tensor.detach().cpu().contiguous()
    import numpy as np

    return np.ascontiguousarray(tensor)


def _header(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """The start of a safetensors file: length, then as JSON where each tensor lies. Equal content gives equal bytes."""
    entries: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + math.prod(tensor.shape) * tensor.itemsize
        entries[name] = {"dtype": _kind(name, tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text


def _kind(name: str, tensor: Any) -> str:
    found = str(tensor.dtype).removeprefix("torch.")
    if found not in _KINDS:
        raise ValueError(f"tensor {name!r} has type {found}; a safetensors file holds {', '.join(_KINDS)}.")
    return _KINDS[found]


def _checksum(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """SHA-256 over the metadata and over every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(f"{name} {kind} {list(tensor.shape)}".encode())
        digest.update(_raw_bytes(tensor))
    return digest.hexdigest()


def _raw_bytes(tensor: Any) -> Any:
    if hasattr(tensor, "detach"):
        import torch

        tensor = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return tensor.tobytes() if tensor.ndim == 0 else memoryview(tensor).cast("B") if tensor.size else b""


def read_tensors(path: str | Path, framework: str = "numpy") -> tuple[dict[str, Any], dict[str, str]]:
    """Read a safetensors file whole; one with a checksum must agree with it.

    Args:
        path: the file.
        framework: "numpy" or "torch".

    Returns:
        (name -> array or tensor, metadata).

    Raises:
        FileError: missing, truncated, altered or not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    check_responds(path)
    try:
        with safe_open(path, framework="pt" if framework == "torch" else "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; run the step that writes it again.") from error
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"{path} is damaged or truncated ({error}); delete it and run again: only this step is repeated."
        ) from error
    expected = metadata.pop(_CHECKSUM, None)
    if expected is not None and expected != _checksum(tensors, metadata):
        raise FileError(
            f"{path} is damaged: its content does not fit its checksum; delete it and run again: only this step is "
            "repeated."
        )
    return tensors, metadata
