"""The MLflow store as a place on disk: its lock, its health, its errors in words."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probmetric.io import FileError

_LOCK_SECONDS = 900.0


@contextlib.contextmanager
def opened(store_uri: str, artifact_root: Path) -> Iterator[None]:
    """The store for one writer: locked, found writable, quiet; what goes wrong becomes a `FileError` in words."""
    with quiet_mlflow(), lock(store_uri, artifact_root), readable_errors(store_uri), one_flush(store_uri):
        check_database(store_uri)
        yield


def is_local(store_uri: str) -> bool:
    """Whether the store is a database here, not a tracking server."""
    return not store_uri.startswith(("http://", "https://", "databricks"))


def is_database(store_uri: str) -> bool:
    """Whether the store is a SQLite file that is there."""
    return store_uri.startswith("sqlite:///") and Path(store_uri.removeprefix("sqlite:///")).is_file()


def absolute(store_uri: str) -> str:
    """The same store whatever the current folder becomes: MLflow keeps open stores by the text of their address."""
    path = store_uri.removeprefix("sqlite:///")
    return store_uri if path == store_uri else f"sqlite:///{Path(path).resolve()}"


@contextlib.contextmanager
def lock(store_uri: str, artifact_root: Path) -> Iterator[None]:
    """Hold the lock file beside the database (beside the artifacts, where the store is not a local file)."""
    from filelock import FileLock, Timeout

    database = store_uri.removeprefix("sqlite:///") if store_uri.startswith("sqlite:///") else ""
    path = Path(f"{database}.lock" if database else f"{artifact_root}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=_LOCK_SECONDS)
        lock.acquire()
    except Timeout as error:
        raise FileError(
            f"{path} has been held by another process for {_LOCK_SECONDS:.0f} s; is one hanging?"
        ) from error
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; results are safe, the MLflow view is not.") from error
    try:
        yield
    finally:
        lock.release()


def check_database(store_uri: str) -> None:
    """Try to write to a SQLite file that exists: MLflow would retry for more than a minute before it gives up."""
    import sqlite3

    path = Path(store_uri.removeprefix("sqlite:///"))
    if not store_uri.startswith("sqlite:///") or not path.exists():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=20)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SELECT count(*) FROM sqlite_master")
        connection.rollback()


@contextlib.contextmanager
def one_flush(store_uri: str) -> Iterator[None]:
    """Flush a SQLite store to the disk once, at the end, instead of after every transaction.

    A power cut meanwhile can cost the store, which is a view and is rebuilt; a killed process cannot.
    """
    if not store_uri.startswith("sqlite:///"):
        yield
        return
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def relax(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", relax)
    try:
        yield
    finally:
        event.remove(Engine, "connect", relax)
        path = Path(store_uri.removeprefix("sqlite:///"))
        if path.exists():
            with path.open("rb+") as file:
                os.fsync(file.fileno())


@contextlib.contextmanager
def quiet_mlflow() -> Iterator[None]:
    """No telemetry, no migration chatter; set before MLflow is imported."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    import mlflow  # noqa: F401  (sets its own log level when imported)

    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def readable_errors(store_uri: str) -> Iterator[None]:
    """Errors of MLflow, SQLAlchemy, SQLite and the file system as one sentence with the way out."""
    import sqlite3

    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
        first = str(error).strip().splitlines()[0].rstrip(".")
        raise FileError(
            f"the MLflow store {store_uri} cannot be written: {first}. The results are safe in their files; mend "
            "or remove the store and run `probmetric track` again: it is rebuilt from them."
        ) from error
