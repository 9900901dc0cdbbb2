"""Which server serves a command, and how the first command starts it. Imports next to nothing: every command does.

A server stands for all that is settled once a process has started and imported: the code, the interpreter, the
variables libraries read when they are loaded (numbers of threads among them), hard limits. All of it is in the name of
its socket, so that a command finds a server in which it would run as in a process of its own, or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FOLDER = "PROBMETRIC_RESIDENT"
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
# What libraries read when they are loaded; all other variables are the command's own.
SETTLED = (
    *("ARROW_", "ATEN_", "BLIS_", "C10_", "CONDA_PREFIX", "GLIBC_", "GOMP_", "GOTO_", "HOME", "KMP_", "LANG", "LC_"),
    *("LD_", "MALLOC_", "MKL_", "MPL", "NPY_", "NUMBA_", "NUMEXPR_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH"),
    *("SLURM_JOB_ID", "TORCH", "TZ", "VECLIB_", "VIRTUAL_ENV", "XDG_"),
)
MOST_SERVERS = 4
SECONDS_TO_REPLACE = 60.0
_WAITING = 128


def fingerprint() -> str:
    """What a process of this command would start with, in 24 digits."""
    limits = [resource.getrlimit(number)[1] for number in limited()]
    variables = sorted(item for item in os.environ.items() if item[0].startswith(SETTLED))
    here = [os.getuid(), os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0)), limits, variables]
    python = [sys.executable, sys.version, list(sys.flags), sys.warnoptions, sys.path[1:]]
    facts = json.dumps([here, python, list(_installed()), sorted(code())])
    return hashlib.sha256(facts.encode()).hexdigest()[:24]


def limited() -> list[int]:
    """Numbers of the resources a process can be limited in."""
    return sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")})


def _installed() -> Iterator[int]:
    """When something was last installed or removed."""
    for path in sys.path:
        if path.endswith("-packages"):
            with suppress(OSError):
                yield os.stat(path).st_mtime_ns  # noqa: PTH116


def code(folder: str = PACKAGE) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of every file of the package."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from code(entry.path)
            else:
                found = entry.stat()
                yield entry.path, found.st_size, found.st_mtime_ns


def connected(folder: str) -> socket.socket | None:
    """A connection to the server of this command, which is started if there is none; None if there can be none."""
    name = f"{fingerprint()}.sock"
    with suppress(OSError), _Near(folder) as near:
        try:
            return near.connect(name)
        except FileNotFoundError:
            pass
        except ConnectionRefusedError:
            _remove_dead(os.path.join(folder, name))  # noqa: PTH118
        if sum(entry.endswith(".sock") for entry in os.listdir(folder)) < MOST_SERVERS:  # noqa: PTH208
            _start(folder, name, near)
        return near.connect(name)
    return None


def _remove_dead(path: str) -> None:
    """Make room for another server, unless the one that died was young: it would die again."""
    if time.time() - os.stat(path).st_mtime > SECONDS_TO_REPLACE:  # noqa: PTH116
        os.unlink(path)  # noqa: PTH108


class _Near:
    """Sockets of a folder whose path may be longer than a socket's may be."""

    def __init__(self, folder: str) -> None:
        self.handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> _Near:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.handle)

    def path(self, name: str) -> str:
        """A short path to a file of the folder, for this process."""
        return f"/proc/self/fd/{self.handle}/{name}"

    def connect(self, name: str) -> socket.socket:
        """A connection to the socket `name`."""
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(self.path(name))
        except OSError:
            link.close()
            raise
        return link

    def listen(self, name: str) -> socket.socket | None:
        """The socket `name`, listening; None if somebody else was first. It is there at once, or not at all."""
        link, mine = socket.socket(socket.AF_UNIX), f"{name}.{os.getpid()}"
        link.bind(self.path(mine))
        link.listen(_WAITING)
        try:
            os.link(self.path(mine), self.path(name))
        except FileExistsError:
            link.close()
            return None
        finally:
            os.unlink(self.path(mine))  # noqa: PTH108
        return link


def _start(folder: str, name: str, near: _Near) -> None:
    """Start a server that is nobody's child; commands wait at its socket while it imports."""
    link = near.listen(name)
    if link is None:
        return
    child = os.fork()
    if child:
        link.close()
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _become_server(folder, name, link)
    finally:
        os._exit(0)


def _become_server(folder: str, name: str, link: socket.socket) -> None:
    said = Path(folder, name).with_suffix(".log")
    log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in enumerate((os.open(os.devnull, os.O_RDWR), log, log)):
        os.dup2(source, target)
    os.set_inheritable(link.fileno(), True)
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv)]
    program = f"import sys; sys.path[0] = {sys.path[0]!r}; from probmetric.resident.server import main; main()"
    os.execv(sys.executable, [sys.executable, *options, "-c", program, str(link.fileno()), folder, name])
