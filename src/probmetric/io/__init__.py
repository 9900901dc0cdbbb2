"""Write files whole or not at all, read them with errors that say what to do, and identify them by digest."""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import hashlib
import importlib
import io
import json
import logging
import os
import re
import shutil
import stat
import tempfile
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from probmetric.errors import ProbMetricError

log = logging.getLogger(__name__)

_HEADER, _CHECKSUM, _LOCK = "probmetric", "sha256", ".lock"
REPEATED = "delete it and run again: only this step is repeated"

_READ_ADVICE = {
    errno.EISDIR: "a folder stands where a file belongs; name a file in it, or move it away and run again",
    errno.EACCES: "make it readable (chmod u+r; for its folders chmod u+rx), or change its owner",
    errno.EPERM: "make it readable (chmod u+r; for its folders chmod u+rx), or change its owner",
    errno.ENXIO: "something else stands where a file belongs; move it away and run the same command again",
    errno.ELOOP: "its links lead in a circle; delete them",
}

DEEPEST = 10_000  # most brackets in a YAML file for the quick reader
_WRITE_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EROFS: "the file system is read-only; mount it writable or choose another folder",
    errno.EACCES: "the folder is not writable; change its permissions (chmod u+w) or its owner",
    errno.EPERM: "writing is not permitted; change the folder's permissions or owner",
    errno.EEXIST: "a file or link stands where a folder belongs; name another place, or move it away",
    errno.ENOTDIR: "a file stands where a folder belongs; name another place, or move it away",
    errno.EFBIG: "the file would exceed the size allowed (ulimit -f); raise the limit and run the same command again",
}


class FileError(ProbMetricError, RuntimeError):
    """A file cannot be read or written; the message names the file and the fix."""


def check_readable(path: str | Path) -> None:
    """Raise an error if `path` exists and cannot be read as a file; for a missing file the reader raises the error.

    Raises:
        FileError: there is no permission, or `path` is a folder, pipe, socket, device or a link to a missing file.
    """
    if not present(path):
        return
    try:
        kind = Path(path).stat().st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # /dev/zero never ends, a pipe may never begin
            raise OSError(errno.ENXIO, "it is a pipe, a socket or a device")
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            file.read(1)
    except OSError as error:
        raise read_problem(path, error) from error


def present(path: str | Path) -> bool:
    """Say whether `path` exists; a link to nothing and an unreadable folder are errors.

    Raises:
        FileError: the target of the link `path` is missing, or the folder of `path` cannot be read.
    """
    try:
        os.stat(path)  # noqa: PTH116 - Path.exists() hides errors, differently in every Python
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
    """Return the error for a `path` that cannot be read; it says why, and what to do."""
    advice = _READ_ADVICE.get(error.errno or 0, "check the disk and the mount, and run the same command again")
    return FileError(f"{path} cannot be read: {error.strerror or error}; {advice}.")


@contextlib.contextmanager
def _reading(path: str | Path, fix: str) -> Iterator[None]:
    """Turn errors about a missing, unreadable or damaged file into one that says how to `fix` it."""
    check_readable(path)
    try:
        yield
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; {fix}.") from error
    except (UnicodeError, csv.Error) as error:
        raise FileError(f"{path} is damaged ({error}); {fix}.") from error
    except OSError as error:
        raise read_problem(path, error) from error


def read_text(path: str | Path, fix: str = "delete it and run again") -> str:
    """Read UTF-8 text; a missing, unreadable or damaged file is a `FileError` that says to `fix` it."""
    with _reading(path, fix):
        return Path(path).read_text(encoding="utf-8")


def cell_text(text: str) -> str:
    """Return `text` for a CSV file, with a quote in front if a spreadsheet would read it as a formula."""
    risky = text.startswith(("\t", "\r", "\n")) or text.lstrip().startswith(tuple("=+-@＝＋－＠"))
    return f"'{text}" if risky else text


@contextlib.contextmanager
def opened_table(path: str | Path, errors: str = "strict") -> Iterator[TextIO]:
    """Open a table that a spreadsheet saved, in UTF-8 or UTF-16; `errors` decides about other bytes, as in `open`."""
    with Path(path).open("rb") as raw:
        encoding = "utf-16" if raw.peek(2)[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8-sig"
        yield io.TextIOWrapper(raw, encoding, errors, newline="")


def separator(path: str | Path) -> str:
    """Return the separator of a table: the tab, comma, semicolon or bar that is most frequent in its head."""
    with opened_table(path, errors="replace") as file:
        return max("\t,;|", key=file.readline(2**16).count)


def read_csv(path: str | Path, fix: str = "delete it and run again") -> tuple[list[str], list[dict[str, str]]]:
    """Read a table, also one that a spreadsheet saved: the names in its first line, the other lines as name -> text."""
    with _reading(path, fix), opened_table(path) as file:
        table = csv.DictReader(file, delimiter=separator(path), strict=True)
        rows = list(table)
    names = list(table.fieldnames or ())
    if any(None in row or None in row.values() for row in rows):
        raise FileError(f"{path} is damaged (a line has not {len(names)} columns); {fix}.")
    return names, rows


def read_json(path: str | Path, fix: str = "delete it and run again", kind: Any = Any) -> Any:
    """Read JSON; a missing or damaged file is a `FileError` that says how to `fix` it.

    Args:
        path: the file.
        fix: what to do about a bad file.
        kind: type its value must have, such as `dict[str, list[float]]`: damaged JSON may still be JSON.
    """
    return json_in(read_text(path, fix), path, fix, kind)


def json_in(text: str, path: str | Path, fix: str, kind: Any = Any) -> Any:
    """Return the value of JSON `text` from the file `path`; errors and arguments as for `read_json`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for a number of 5,000 digits
        raise FileError(f"{path} is damaged ({error}); {fix}.") from error
    return of_kind(value, kind, path, fix)


def of_kind(value: Any, kind: Any, path: str | Path, fix: str) -> Any:
    """Return `value`, read from `path`, if it has the type `kind`; else raise an error that says to `fix` the file."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return value if kind is Any else TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        place = str(next(iter(problem["loc"]), "top level"))
        raise FileError(f"{path} is damaged ({place} {problem['msg'].removeprefix('Input ')}); {fix}.") from None


def signed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with their digest, by which `unsigned` notices changes."""
    return dict(values) | {"digest": digest_of(values)}


def unsigned(values: Any, path: str | Path, fix: str) -> Any:
    """Return values that were `signed`, read from `path`, without their digest.

    Raises:
        FileError: the values were changed, or have no digest; the message says how to `fix` it.
    """
    if not isinstance(values, dict) or "digest" not in values:
        raise FileError(f"{path} is damaged or was edited: it has no digest; {fix}.")
    plain = {name: value for name, value in values.items() if name != "digest"}
    try:
        same = digest_of(plain) == values["digest"]
    except ValueError:  # NaN, which we never write
        same = False
    if not same:
        raise FileError(f"{path} is damaged or was edited: its digest is another one; {fix}.")
    return plain


def remembered_json(path: str | Path) -> Any:
    """Return the JSON of a cache file; None if it is missing, unreadable or damaged."""
    try:
        return json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def read_yaml(path: str | Path, fix: str = "restore it, or run the step that writes it again") -> Any:
    """Read YAML safely: no objects are constructed, and no key may occur twice. Errors name the file and the line."""
    import yaml

    text = read_text(path, fix)
    deep = sum(map(text.count, ("[", "{", "- - "))) > DEEPEST  # libyaml would crash
    loader = _refusing_repeats(yaml.SafeLoader if deep else getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        return yaml.load(text, Loader=loader)  # a safe loader either way
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problem = str(error).replace('"<unicode string>"', Path(path).name)
        raise FileError(f"{path} is not valid YAML: {problem}") from error


def _refusing_repeats(loader: Any) -> Any:
    """Return a loader for one file that reads like the YAML loader `loader`, and refuses a key that occurs twice."""
    import yaml

    checked = set[yaml.MappingNode]()  # a mapping that others merge (<<) is seen again, then with its own merged keys

    class Refusing(loader):
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            keys = set[tuple[str, str]]()
            written = () if node in checked else (key for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            for key in written:
                if (key.tag, key.value) in keys:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands here again", problem_mark=key.start_mark)
                keys.add((key.tag, key.value))
            checked.add(node)
            super().flatten_mapping(node)

    return Refusing


def sha256_file(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a file, read in blocks."""
    with _reading(path, "restore it, or run the step that writes it again"), Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON-able value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield an empty file in a folder beside `path`; on success it is flushed and renamed to `path`, else removed.

    Readers see the old file or the new one, never half of it, also after a power cut or SIGKILL.

    Raises:
        FileError: disk full, read-only file system or missing permission, with the fix.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent, f"{path.name}.")
        handle, folder = _temporary(path)
    except OSError as error:
        raise _write_problem(path, error) from error
    temporary, whole = folder / path.name, folder.with_suffix(".whole.tmp")
    try:
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)  # mode by the umask, which cannot be read without changing it
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            # The folder is removed first, so that a process killed after the last step leaves no files.
            _lock(file.fileno())
            temporary.rename(whole)
            shutil.rmtree(folder)
            whole.replace(path)
    except OSError as error:
        raise _write_problem(path, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        whole.unlink(missing_ok=True)
        os.close(handle)


def _temporary(path: Path) -> tuple[int, Path]:
    """Make a folder beside `path` whose lock is held while its writer lives; return the lock's handle and the folder.

    It is a folder because some libraries write their own temporary file beside the file that they are to write.
    """
    while True:
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
        with contextlib.suppress(FileNotFoundError):  # another writer regarded the folder as abandoned
            handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT)
            if _lock(handle) is not False and (folder / _LOCK).exists():
                return handle, folder
            os.close(handle)


def remove_abandoned(folder: Path, start: str) -> None:
    """Remove files of killed writers from `folder` whose names begin with `start`: no process holds their locks."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        if not (name.startswith(f".{start}") and name.endswith(".tmp")):
            continue
        place = folder / name
        is_folder = place.is_dir()
        with contextlib.suppress(OSError):
            try:
                handle = os.open(place / _LOCK if is_folder else place, os.O_RDONLY)
            except FileNotFoundError:
                place.rmdir()  # its writer was killed before there was a lock
                continue
            try:
                if _lock(handle):
                    shutil.rmtree(place) if is_folder else place.unlink()
            finally:
                os.close(handle)


@contextlib.contextmanager
def alone(path: str | Path, doing: str = "", *, wait: bool = True) -> Iterator[None]:
    """Hold the right to change `path`, after waiting for another process that holds it; a killed process loses it.

    Args:
        path: the file or folder; the lock is beside it, `.NAME.lock`.
        doing: what the other process does, for the message; empty: it changes `path`.
        wait: False raises an error if another process holds the right.

    Raises:
        FileError: no lock can be written beside `path`, with the fix; or another process holds the right.
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
            if _is(lock, file.fileno()):  # else the process before removed the lock's file
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return


@contextlib.contextmanager
def try_lock(path: str | Path) -> Iterator[bool]:
    """Hold an exclusive lock on the file `path` unless another process holds it; yield whether it is held.

    If the last holder deleted the file after it was opened here, the lock counts as not held.
    """
    with Path(path).open("a+") as file:
        yield _lock(file.fileno()) is not False and _is(Path(path), file.fileno())


def _is(path: Path, handle: int) -> bool:
    """Say whether `path` is the open file of `handle`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> bool | None:
    """Lock the file of `handle` unless another process does; return whether it is locked, None without locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _write_problem(path: Path, error: OSError) -> FileError:
    advice = _WRITE_ADVICE.get(error.errno or 0, "nothing was written there")
    return FileError(f"cannot write {path}: {error.strerror or error}; {advice}.")


def problem_with(path: str | Path, error: OSError) -> FileError:
    """Return the error for a `path` that cannot be read or written, from `error`; it says why, and what to do."""
    written = (set(_WRITE_ADVICE) | {errno.ENOTEMPTY}) - {errno.EACCES, errno.EPERM}
    return _write_problem(Path(path), error) if error.errno in written else read_problem(path, error)


def remove(path: str | Path) -> None:
    """Remove a file, if it exists.

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


def json_text(value: Any) -> str:
    """Return `value` as indented JSON; NaN and infinities are refused (write None)."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinities are refused (write None)."""
    write_text(path, json_text(value))


def write_yaml(path: str | Path, value: Any) -> None:
    """Write `value` as YAML in the order given, atomically."""
    import yaml

    write_text(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110))


def content_digest(path: str | Path) -> str:
    """Return the digest of a file's content: the checksum in the header of a tensor file, else its SHA-256."""
    if Path(path).suffix == ".safetensors":
        with contextlib.suppress(FileError), open_tensors(path) as file:
            checksum = _header_of(file).get(_CHECKSUM)
            if checksum:
                return checksum
    return sha256_file(path)


def write_tensors(path: str | Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write NumPy arrays or torch tensors to a safetensors file, atomically, with a checksum in its header.

    The same tensors and metadata give the same bytes.

    Args:
        path: the file.
        tensors: name -> array (all NumPy, or all torch).
        metadata: text -> text, stored in the file's header.

    Raises:
        ValueError: the format does not have the type of a tensor.
    """
    from safetensors import SafetensorError

    dense = {name: _dense(tensor) for name, tensor in tensors.items()}
    header = dict(metadata or {})
    header[_CHECKSUM] = _checksum(dense, header)
    of_torch = any(hasattr(tensor, "detach") for tensor in dense.values())
    library = importlib.import_module(f"safetensors.{'torch' if of_torch else 'numpy'}")
    with atomic_path(path) as temporary:
        try:
            library.save_file(dense, temporary, {_HEADER: json.dumps(header, sort_keys=True)})
        except (SafetensorError, KeyError) as error:
            if number := re.search(r"\(os error (\d+)\)", str(error)):
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
            raise ValueError(f"{path} cannot hold these tensors: {error}") from error


def tensors_digest(tensors: Mapping[str, Any]) -> str:
    """Return the checksum of these tensors without metadata, which is `content_digest` of their file."""
    return _checksum({name: _dense(tensor) for name, tensor in tensors.items()}, {})


def _dense(tensor: Any) -> Any:
    """Return a contiguous tensor in main memory that shares its memory with no other tensor."""
    if hasattr(tensor, "detach"):
        import torch

        return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    import numpy as np

    return np.asarray(tensor, order="C")


def _checksum(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 over the metadata and over every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(f"{name} {kind} {list(tensor.shape)}".encode())
        digest.update(_raw_bytes(tensor))
    return digest.hexdigest()


def _raw_bytes(tensor: Any) -> Any:
    """Return the bytes of a contiguous tensor as an array (n,)."""
    flat = tensor.reshape(-1)
    if hasattr(flat, "detach"):
        import torch

        return flat.view(torch.uint8).numpy()
    return flat.view("uint8")


@contextlib.contextmanager
def open_tensors(path: str | Path, framework: str = "numpy", fix: str = REPEATED) -> Iterator[Any]:
    """Open a safetensors file as `safetensors.safe_open` does: tensors are read one by one, unchecked.

    Raises:
        FileError: the file is missing, truncated or not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    check_readable(path)
    try:
        with safe_open(path, framework="pt" if framework == "torch" else "numpy") as file:
            if _is_altered(file.metadata() or {}):
                raise FileError(f"{path} is damaged: its header was altered; {fix}.")
            yield file
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; run the step that writes it again.") from error
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} is damaged or truncated ({error}); {fix}.") from error


def _is_altered(header: Mapping[str, str]) -> bool:
    """Tell whether the form of a header shows that it was changed after `write_tensors` wrote it."""
    if _HEADER not in header:
        return any(f'"{_CHECKSUM}"' in value for value in header.values())
    try:
        return not isinstance(json.loads(header[_HEADER]), dict)
    except (ValueError, RecursionError):
        return True


def tensor_metadata(file: Any) -> dict[str, str]:
    """Return the metadata that `write_tensors`, or another program, stored in an open file."""
    return {name: value for name, value in _header_of(file).items() if name != _CHECKSUM}


def _header_of(file: Any) -> dict[str, str]:
    """Return the metadata of a file that `open_tensors` has opened, with the checksum."""
    header: dict[str, str] = file.metadata() or {}
    if _HEADER not in header:
        return header
    return {str(name): str(value) for name, value in json.loads(header[_HEADER]).items()}


def read_tensors(
    path: str | Path, framework: str = "numpy", fix: str = REPEATED
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a safetensors file whole; one with a checksum must agree with it.

    Args:
        path: the file.
        framework: "numpy" or "torch".
        fix: what to do about a bad file.

    Returns:
        (name -> array or tensor, metadata).

    Raises:
        FileError: the file is missing, truncated, altered or not a safetensors file.
    """
    with open_tensors(path, framework, fix) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = _header_of(file)
    expected = metadata.pop(_CHECKSUM, None)
    if expected is not None and expected != _checksum(tensors, metadata):
        raise FileError(f"{path} is damaged: its content does not fit its checksum; {fix}.")
    return tensors, metadata
