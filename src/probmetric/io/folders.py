"""Write, replace and remove ProbMetric's folders, only if every file in them was written by us for the same purpose.

A folder of ours holds `.probmetric.json`: its purpose ("prepared dataset", "model folder"), the names of its files, and
a digest of both. A missing or empty folder may be written, too. The targets of links are never deleted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from probmetric.io import FileError, alone, digest_of, problem_with, remembered_json, write_json

MARKER = ".probmetric.json"
LEFT_BY_BROWSERS = {".DS_Store", "Thumbs.db", "desktop.ini"}
SHOWN = 3


def check_replaceable(folder: str | Path, purpose: str, sources: Iterable[str | Path] = ()) -> None:
    """Raise an error unless `folder` may be replaced by one written for `purpose`.

    Args:
        folder: the folder to be written.
        purpose: its purpose, such as "model folder".
        sources: the files and folders it is made from; none may be `folder`, lie in it, or contain it.

    Raises:
        FileError: the folder is a link, the current folder, the home folder or a parent of either; it is or overlaps a
            source; or it holds a file that was not written for this purpose, which the message names.
    """
    folder = Path(folder)
    _check_place(folder, sources)
    others = foreign_files(folder, purpose)
    if others:
        shown = ", ".join(others[:SHOWN]) + (f" and {len(others) - SHOWN} more" if len(others) > SHOWN else "")
        raise FileError(
            f"{folder} holds what ProbMetric did not write there as its {purpose}: {shown}. Nothing was changed; name "
            "another folder, or move these files away."
        )


def claim_folder(folder: str | Path, purpose: str) -> None:
    """Make `folder` and mark it as written for `purpose`, so that files can be added to it or replaced one by one.

    Files of others beside ours stay; the caller removes only files that it has written.

    Raises:
        FileError: as for `check_claimable`.
    """
    check_claimable(folder, purpose)
    if _files_of_marker(Path(folder), purpose) is None:
        mark_folder(folder, purpose, ())


def check_claimable(folder: str | Path, purpose: str, sources: Iterable[str | Path] = ()) -> None:
    """Raise an error unless `folder` is missing, empty or marked as written for `purpose`.

    Raises:
        FileError: as for `check_replaceable`, or the folder holds files and was never marked for this purpose.
    """
    folder = Path(folder)
    _check_place(folder, sources)
    if _files_of_marker(folder, purpose) is None:
        check_replaceable(folder, purpose, sources)


def check_new_file(path: str | Path, ours: Callable[[Path], bool] | None = None) -> None:
    """Raise an error if `path` exists and we may not replace it.

    Args:
        path: the file to write.
        ours: tells whether we wrote a file for the same purpose; None: no file is replaced.

    Raises:
        FileError: there is a link, a folder, or a file that is not `ours`.
    """
    path = Path(path)
    if path.is_symlink():
        raise FileError(f"{path} is a link; name the file it leads to, or another one.")
    if path.is_dir():
        raise FileError(f"{path} is a folder, and a file is to be written; name a file in it.")
    if path.exists() and not (ours and ours(path)):
        raise FileError(f"{path} is there already, and nothing of yours is replaced; name another file, or remove it.")


def check_new_parquet(path: str | Path, ours: Callable[[Path], bool] | None = None) -> None:
    """Raise an error if `path` has no name of a Parquet file, or if `check_new_file` raises one."""
    path = Path(path)
    if path.suffix != ".parquet":
        raise FileError(f"{path} is to be a Parquet file; call it {path.with_suffix('.parquet').name}.")
    check_new_file(path, ours)


def check_apart(places: Mapping[str, str | Path]) -> None:
    """Raise an error if two of the named folders are the same, or one lies in another.

    Raises:
        FileError: two overlap; the message gives both names and paths.
    """
    named = [(name, Path(place), Path(place).resolve()) for name, place in places.items()]
    for number, (name, place, full) in enumerate(named):
        for other, other_place, other_full in named[:number]:
            if full == other_full or full in other_full.parents or other_full in full.parents:
                raise FileError(
                    f"{name} ({place}) and {other} ({other_place}) overlap: what is made could replace what it is made "
                    "from. Give each a folder of its own, outside the other."
                )


def foreign_files(folder: str | Path, purpose: str) -> list[str]:
    """Return the names of the files and links in `folder` that were not written for `purpose`, sorted.

    Raises:
        FileError: `folder` is a file, or a folder cannot be read.
    """
    folder = Path(folder)
    if not os.path.lexists(folder):
        return []
    if not folder.is_dir():
        raise FileError(f"{folder} is a file where a folder is to be written; name another place, or move it away.")
    return sorted(set(_names(folder)) - (_files_of_marker(folder, purpose) or set()))


def mark_folder(folder: str | Path, purpose: str, names: Iterable[str] | None = None) -> None:
    """Write the marker that names the purpose of `folder` and the files written for it.

    Args:
        folder: the folder; it is made if it is missing.
        purpose: its purpose.
        names: the files written, relative to the folder; None: all files in it.
    """
    folder = Path(folder)
    files = sorted({*(_names(folder) if names is None else names), MARKER})
    write_json(folder / MARKER, {"purpose": purpose, "files": files, "digest": digest_of([purpose, files])})


def remove_folder(folder: str | Path, purpose: str) -> None:
    """Remove `folder`, if it exists and every file in it was written for `purpose`.

    Raises:
        FileError: as for `check_replaceable`, or the folder cannot be removed.
    """
    check_replaceable(folder, purpose)
    if os.path.lexists(folder):
        _remove(Path(folder))


@contextlib.contextmanager
def scratch_folder(target: str | Path, purpose: str, *, wait: bool = True) -> Iterator[Path]:
    """Yield a folder beside `target` to work in, one process at a time; it is removed at the end.

    After an error or an interruption it stays with its files, and the next call for the same target gets it again.

    Raises:
        FileError: the folder of this name holds other people's files; or, without `wait`, another process uses it.
    """
    target = Path(target)
    work = target.with_name(f".{target.name}.work")
    unfinished = f"unfinished {purpose}"
    with alone(target, f"writes {target}", wait=wait):
        _check_place(work, ())
        if _files_of_marker(work, unfinished) is None:
            check_replaceable(work, unfinished)
            mark_folder(work, unfinished, ())
        yield work
        _remove(work)


@contextlib.contextmanager
def new_folder(target: str | Path, purpose: str, sources: Iterable[str | Path] = ()) -> Iterator[Path]:
    """Yield an empty folder; on success it is marked and takes the place of `target`, else it is removed.

    Raises:
        FileError: `target` may not be replaced, as in `check_replaceable`.
    """
    check_replaceable(target, purpose, sources)
    with scratch_folder(target, purpose) as work:
        new = empty_folder(work / "new")
        try:
            yield new
            put_folder(new, target, purpose)
        except BaseException:
            _remove(work)
            raise


def empty_folder(folder: Path) -> Path:
    """Return the folder `folder` of a scratch folder, emptied or made."""
    if os.path.lexists(folder):
        _remove(folder)
    folder.mkdir()
    return folder


def put_folder(new: str | Path, target: str | Path, purpose: str) -> None:
    """Mark the folder `new` and rename it to `target`; an old `target` is first renamed, then removed.

    Raises:
        FileError: `target` may not be replaced, as in `check_replaceable`.
    """
    new, target = Path(new), Path(target)
    check_replaceable(target, purpose)
    mark_folder(new, purpose)
    old = target.with_name(f".{target.name}.old")
    remove_folder(old, purpose)
    try:
        if target.exists():
            target.rename(old)
        new.rename(target)
    except OSError as error:
        raise problem_with(target, error) from error
    if os.path.lexists(old):
        _remove(old)


def _check_place(folder: Path, sources: Iterable[str | Path]) -> None:
    """Raise an error if `folder` may never be written as a whole, whatever its content."""
    if folder.is_symlink():
        raise FileError(f"{folder} is a link; name the folder it leads to, or another one.")
    full = folder.resolve()
    places = {"the current folder": Path.cwd()}
    with contextlib.suppress(RuntimeError):
        places["your home folder"] = Path.home()
    for what, place in places.items():
        if full == place.resolve() or full in place.resolve().parents:
            raise FileError(f"{folder} is {what} or holds it; name a new folder.")
    for source in sources:
        check_apart({"the folder to write": folder, "what it is made from": source})


def _files_of_marker(folder: Path, purpose: str) -> set[str] | None:
    """Return the names that the marker of `folder` lists; None without a valid marker of this purpose."""
    values = remembered_json(folder / MARKER)
    if not isinstance(values, dict) or values.get("purpose") != purpose:
        return None
    files = values.get("files")
    if not isinstance(files, list) or values.get("digest") != digest_of([purpose, files]):
        return None
    return {str(name) for name in files}


def _names(folder: Path) -> Iterator[str]:
    """Yield files and links below `folder`, relative to it, without temporary files of the marker and file browsers."""

    def stop(error: OSError) -> None:
        raise problem_with(error.filename or folder, error) from error

    for place, folders, files in os.walk(folder, onerror=stop):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]  # noqa: PTH114, PTH118
        for name in (*files, *links):
            ours = name.startswith(f".{MARKER}.") and name.endswith(".tmp")
            if name not in LEFT_BY_BROWSERS and not ours:
                yield (Path(place) / name).relative_to(folder).as_posix()


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise problem_with(error.filename or folder, error) from error
