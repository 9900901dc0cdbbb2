"""The child that is a command: it takes over the client's place in the system, runs the command and ends as it."""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from probmetric.launch import die_with


def run(request: Mapping[str, Any], files: Sequence[int], server: int) -> NoReturn:
    """Become the command of `request` and run it; does not return.

    Args:
        request: what the client said of itself.
        files: its standard input, output, error and working folder.
        server: process number of the server, at whose death this process dies.
    """
    status = 1
    try:
        die_with(server)
        _take_place(request, files)
        from probmetric.cli import main

        status = _status(main)
        _finish()
    finally:
        _exit(status)


def _take_place(request: Mapping[str, Any], files: Sequence[int]) -> None:
    os.setpgid(0, 0)  # signals of a terminal reach it, and what it starts, through the client
    os.fchdir(files[3])
    for target, source in enumerate(files[:3]):
        os.dup2(source, target)
    for source in files:
        os.close(source)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty())  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv[:], sys.path[:] = request["arguments"], request["path"]
    os.umask(request["umask"])
    for number, soft in request["limits"].items():
        hard = resource.getrlimit(int(number))[1]
        resource.setrlimit(int(number), (soft, hard))
    tempfile.tempdir = None
    _forget_random_state()
    _listen(request["ignored"])


def _forget_random_state() -> None:
    """Global generators start anywhere, as in any process; Python's own does so by itself."""
    import numpy as np
    import torch

    np.random.seed()  # noqa: NPY002
    torch.default_generator.seed()


def _listen(ignored: Sequence[int]) -> None:
    """Signals do what they do in a process of Python, or nothing where the client ignores them."""
    changeable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    for number in changeable:
        if number in ignored:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _status(main: Any) -> int:
    """Exit status of the command, as Python's own end would give it."""
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)  # noqa: T201
    return 1


def _finish() -> None:
    """What an interpreter does at its end, but for taking every module apart."""
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def _exit(status: int) -> NoReturn:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        status = status or 120
    os._exit(status)
