"""The server: imports what steps need, then forks a child per command and tells its client how the child ended.

One thread, no CUDA context. It listens on a Unix socket in a folder of this user alone, below `state/`; it ends when
the workflow that owns the folder has ended, however it ended, and no child is left.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from probmetric.resident import job, usage
from probmetric.resident.client import NUMBER
from probmetric.resident.starting import code

SECONDS_IDLE = 900.0
# Imported before the first command; what starts threads, or only some commands need, is not among them.
WANTED = (
    *("numpy", "torch", "safetensors.torch", "tqdm", "yaml", "faiss"),
    *("probmetric.cli", "probmetric.runs.steps", "probmetric.training.run", "probmetric.tracking"),
    *("probmetric.data.images", "probmetric.runs.evaluate", "probmetric.trust.answers"),
    *("probmetric.reporting.tables", "probmetric.reporting.experiment"),
    *("probmetric.losses.contrastive", "probmetric.models.compact", "probmetric.uncertainty.norm"),
)
_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


def main() -> None:
    """Serve on an open socket until the owner of the folder has ended: SOCKET FOLDER NAME."""
    number, folder, name = sys.argv[1:]
    before = list(code())
    listener, path = socket.socket(fileno=int(number)), Path(folder, name)
    owner = os.pidfd_open(int(path.parent.name))
    _import_wanted()
    if list(code()) == before and _forks_well():
        gc.collect()
        gc.freeze()
        Server(listener, owner, path.parent).serve()
        usage.note_server(path.parent)
    with contextlib.suppress(OSError):
        path.unlink()


def _import_wanted() -> None:
    """Import what steps need. The kernels come first: the thread that loads them is gone when all is imported.

    Children inherit how memory is kept.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("probmetric.retrieval.among").load_kernels()
    for module in WANTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    importlib.import_module("probmetric.training.device").keep_freed_memory()


def _forks_well() -> bool:
    """Whether no import has started a thread, which a child would lack; OpenBLAS stops and starts its own at a fork."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads == 1 or os.environ.get("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS")) != "1":
        return True
    logging.error("an import has started %d thread(s): commands run as processes of their own.", threads - 1)
    return False


@dataclass(eq=False)
class _Command:
    """A connection, and what is known of its command.

    Attributes:
        link: the connection; None when the client is gone.
        said: bytes of the request that have arrived.
        files: descriptors received.
        child: process number, once there is one.
        handle: the child's pidfd.
        asked: when the client sent its request, seconds since the epoch.
        started: when the child was forked, likewise.
    """

    link: socket.socket | None
    said: bytes = b""
    files: list[int] = field(default_factory=list)
    child: int = 0
    handle: int = -1
    asked: float = 0.0
    started: float = 0.0

    @property
    def end(self) -> int:
        """Where the request ends in what was said."""
        return NUMBER + int.from_bytes(self.said[:NUMBER], "big")


class Server:
    """Answers commands in one thread."""

    def __init__(self, listener: socket.socket, owner: int, folder: Path) -> None:
        self.listener, self.owner, self.folder = listener, owner, folder
        self.selector = selectors.DefaultSelector()
        self.commands: set[_Command] = set()
        self.owned = True

    def serve(self) -> None:
        """Answer until the owner has ended and no child is left, or nothing was asked for a long time."""
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.selector.register(self.owner, selectors.EVENT_READ, self._end_with_owner)
        while self.owned or self.commands:
            events = self.selector.select(SECONDS_IDLE)
            if not events and not self.commands:
                return
            for key, _mask in events:
                key.data()

    def _end_with_owner(self) -> None:
        self.owned = False
        self.selector.unregister(self.owner)
        self.selector.unregister(self.listener)
        self.listener.close()

    def _accept(self) -> None:
        try:
            link = self.listener.accept()[0]
        except OSError:
            return
        command = _Command(link)
        self.commands.add(command)
        self.selector.register(link, selectors.EVENT_READ, lambda: self._hear(command))

    def _hear(self, command: _Command) -> None:
        """Take in what a client says; its end is the end of its command."""
        link = command.link
        if link is None:
            return
        try:
            said, files, _flags, _address = socket.recv_fds(link, 1 << 16, 8)
        except OSError:
            said, files = b"", []
        command.files += files
        if not said:
            self._hang_up(command)
        elif command.child:
            for number in said:
                self._signal(command, number)
        else:
            command.said += said
            self._answer(command, link)

    def _answer(self, command: _Command, link: socket.socket) -> None:
        """Say that a whole request was understood; fork when the client then says go."""
        if len(command.said) == command.end > NUMBER:
            with contextlib.suppress(OSError):
                link.sendall(b"r")
        elif command.said[command.end :] == b"g" and len(command.files) == 4:
            self._fork(command, link)

    def _fork(self, command: _Command, link: socket.socket) -> None:
        server = os.getpid()
        request = json.loads(command.said[NUMBER : command.end])
        everything = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        command.asked, command.started = request["asked"], time.time()
        command.child = os.fork()
        if not command.child:
            self._leave(command)
            job.run(request, command.files, server)
        signal.pthread_sigmask(signal.SIG_SETMASK, everything)
        command.handle = os.pidfd_open(command.child)
        self.selector.register(command.handle, selectors.EVENT_READ, lambda: self._reap(command))
        with contextlib.suppress(OSError):
            link.sendall(command.child.to_bytes(NUMBER, "big"))

    def _leave(self, command: _Command) -> None:
        """In the child: close what belongs to the server."""
        self.selector.close()
        self.listener.close()
        for other in self.commands:
            if other.link:
                other.link.close()
            if other.handle >= 0:
                os.close(other.handle)
            for number in other.files if other is not command else ():
                os.close(number)
        if self.owned:
            os.close(self.owner)

    def _signal(self, command: _Command, number: int) -> None:
        """Pass a signal on; those of a terminal go to all processes of the command, as in a shell."""
        sent = signal.SIGSTOP if number == signal.SIGTSTP else number
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if number in _TERMINAL else os.kill)(command.child, sent)

    def _hang_up(self, command: _Command) -> None:
        """The client is gone: so is its command."""
        self._close(command)
        if command.child:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(command.child, signal.SIGKILL)
        else:
            self._forget(command)

    def _reap(self, command: _Command) -> None:
        if command.handle < 0:
            return
        log = usage.log_of(command.files[1], command.files[3])
        _child, status, used = os.wait4(command.child, 0)
        if log:
            usage.note(self.folder, log, used, command.asked, command.started)
        self.selector.unregister(command.handle)
        os.close(command.handle)
        command.handle = -1
        if command.link:
            with contextlib.suppress(OSError):
                command.link.sendall(status.to_bytes(NUMBER, "big"))
        self._close(command)
        self._forget(command)

    def _close(self, command: _Command) -> None:
        if command.link:
            self.selector.unregister(command.link)
            command.link.close()
            command.link = None

    def _forget(self, command: _Command) -> None:
        self.commands.discard(command)
        for number in command.files:
            os.close(number)
        command.files.clear()
