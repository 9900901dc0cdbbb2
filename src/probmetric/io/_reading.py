"""Reading: a file that is missing, damaged, or on a file system that hangs, is an error that says what to do."""

from __future__ import annotations

import _thread
import csv
import errno
import hashlib
import io
import json
import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probmetric.errors import ProbMetricError

_READ_ADVICE = {
    errno.EISDIR: "a folder stands where a file belongs; move it away and run the same command again",
    errno.EACCES: "make it readable (chmod u+r; for its folders chmod u+rx), or change its owner",
    errno.EPERM: "make it readable (chmod u+r; for its folders chmod u+rx), or change its owner",
    errno.ENXIO: "a device stands where a file belongs; move it away and run the same command again",
    errno.ELOOP: "its links lead in a circle; delete them",
}


class FileError(ProbMetricError, RuntimeError):
    """A file cannot be read or written; the message names the file and the fix."""


def check_responds(path: str | Path) -> None:
    """Open `path` and read its first byte, within the time allowed; that a file is missing is the reader's to say.

    Raises:
        FileError: no answer in time, no permission, a folder or a device in its place, a link to a missing file; names
            the file.
    """
    seconds = float(os.environ.get("PROBMETRIC_READ_TIMEOUT", "120"))
    answered = threading.Event()
    problems: list[OSError] = []

    def ask() -> None:
        try:
            kind = os.stat(path).st_mode  # noqa: PTH116
            if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):  # /dev/zero has no end
                raise OSError(errno.ENXIO, "it is a device")
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


def read_json(path: str | Path, fix: str = "delete it and run again", kind: Any = Any) -> Any:
    """Read JSON; a missing or damaged file is a `FileError` that says to `fix` it.

    Args:
        path: the file.
        fix: what to do about a bad file.
        kind: type its value must have, such as `dict[str, list[float]]`: damaged JSON may still be JSON.
    """
    try:
        value = json.loads(read_text(path, fix))
    except (ValueError, RecursionError) as error:  # also of a number of 5,000 digits
        raise FileError(f"{path} is damaged ({error}); {fix}.") from error
    return of_kind(value, kind, path, fix)


def of_kind(value: Any, kind: Any, path: str | Path, fix: str) -> Any:
    """`value`, which was read from `path` and must have the type `kind`; else a `FileError` that says to `fix` it."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return value if kind is Any else TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        place = str(next(iter(problem["loc"]), "top level"))
        raise FileError(f"{path} is damaged ({place} {problem['msg'].removeprefix('Input ')}); {fix}.") from None


def signed(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with their digest, by which `unsigned` finds whether they were changed."""
    return dict(values) | {"digest": digest_of(values)}


def unsigned(values: Any, path: str | Path, fix: str) -> Any:
    """What was `signed`, read from `path`, without its digest; files of earlier versions have none.

    Raises:
        FileError: it was changed; says to `fix` it.
    """
    if not isinstance(values, dict) or "digest" not in values:
        return values
    plain = {name: value for name, value in values.items() if name != "digest"}
    try:
        same = digest_of(plain) == values["digest"]
    except ValueError:  # NaN: no number of ours
        same = False
    if not same:
        raise FileError(f"{path} is damaged or was edited: its digest is another one; {fix}.")
    return plain


def remembered_json(path: str | Path) -> Any:
    """JSON of a file that only saves work; None where it is missing, unreadable or damaged."""
    try:
        return json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


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


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON-able value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()
