"""Files: written whole or not at all, read with errors that say what to do, identified by digest."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.errors import ProbMetricError

if TYPE_CHECKING:
    import numpy as np

_ADVICE = {
    errno.ENOSPC: "the disk is full; free some space and run the same command again",
    errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
    errno.EROFS: "the file system is read-only; mount it writable or choose another folder",
    errno.EACCES: "the folder is not writable; change its permissions (chmod u+w) or its owner",
    errno.EPERM: "writing is not permitted; change the folder's permissions or owner",
}


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
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
    except OSError as error:
        raise _write_problem(path, error) from error
    temporary = Path(name)
    try:
        yield temporary
        _flush(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise _write_problem(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


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


def write_text(path: str | Path, text: str) -> None:
    """Write `text` (UTF-8) to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinities are refused (write None)."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: str | Path, fix: str = "delete it and run again") -> Any:
    """Read JSON; a missing or damaged file is a `FileError` that says to `fix` it."""
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; {fix}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is damaged ({error}); {fix}.") from error


def write_yaml(path: str | Path, value: Any) -> None:
    """Write `value` as YAML in the order given, atomically."""
    import yaml

    write_text(path, yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110))


def read_yaml(path: str | Path) -> Any:
    """Read YAML safely (no objects are constructed); errors name the file and the line."""
    import yaml

    path = Path(path)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # a safe loader either way
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is not valid YAML: {error}") from error


def sha256_file(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file, read in 1 MiB blocks."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON-able value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def write_tensors(path: str | Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write NumPy arrays or torch tensors to a safetensors file, atomically.

    Args:
        path: the file.
        tensors: name -> array (all NumPy, or all torch).
        metadata: text -> text, stored in the file's header.
    """
    from safetensors import SafetensorError

    torch_like = any(hasattr(tensor, "detach") for tensor in tensors.values())
    save: Callable[..., None]
    ready: dict[str, Any]
    if torch_like:
        from safetensors.torch import save_file as save

        ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    else:
        import numpy as np
        from safetensors.numpy import save_file as save

        ready = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    with atomic_path(path) as temporary:
        try:
            save(ready, temporary, metadata=dict(metadata or {}))
        except SafetensorError as error:  # carries the operating system's error as text only
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error


def read_tensors(path: str | Path, framework: str = "numpy") -> tuple[dict[str, Any], dict[str, str]]:
    """Read a safetensors file whole.

    Args:
        path: the file.
        framework: "numpy" or "torch".

    Returns:
        (name -> array or tensor, metadata).

    Raises:
        FileError: missing, truncated or not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    try:
        with safe_open(path, framework="pt" if framework == "torch" else "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; run the step that writes it again.") from error
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"{path} is damaged or truncated ({error}); delete it and run again: only this step is repeated."
        ) from error


def read_array(path: str | Path, name: str) -> np.ndarray:
    """Read one array of a safetensors file."""
    return read_tensors(path)[0][name]
