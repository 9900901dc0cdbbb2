"""Interruption and telemetry of every process.

Ctrl-C and SIGTERM end a command with one line; temporary files are removed, and programs that the command has started
end first. No tool sends telemetry: its settings are switched off here. `.dvc/config` (`core.analytics`) switches it off
for DVC too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

INTERRUPTED = "interrupted; run the same command again to go on."
TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",  # timm's model files
}
_USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived, from a scheduler or from `kill`."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` or `Terminated` in the block when a signal arrives; a second signal ends it at once.

    During an import the signal ends the whole process, because extension modules take any exception for a missing
    module and go on without it. A signal that already has another handler keeps it.
    """
    in_main = threading.current_thread() is threading.main_thread()
    heard = [number for number, usual in _USUAL.items() if in_main and signal.getsignal(number) == usual]
    for number in heard:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, _USUAL[number])


def exit_status(error: KeyboardInterrupt) -> int:
    """Return the shell's exit status for the signal behind `error`: 130 or 143."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    error = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
    if _imports(frame):
        os.write(2, f"{INTERRUPTED}\n".encode())
        os._exit(exit_status(error))
    raise error


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def call(command: Sequence[str]) -> int:
    """Run a program and return its exit status; after an interruption, wait until the program has cleaned up.

    A terminal sends Ctrl-C to the program too. SIGTERM reaches only this process, which then sends the program the
    signal of Ctrl-C, so that Snakemake and DVC release their locks.
    """
    with subprocess.Popen(command, env=os.environ | {"PATH": path_with_this_python()}) as program:
        try:
            return program.wait()
        except KeyboardInterrupt as error:
            if isinstance(error, Terminated):
                program.send_signal(signal.SIGINT)
            program.wait()
            raise


def path_with_this_python() -> str:
    """Return PATH with the programs beside this Python first, whether or not its environment is activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def switch_telemetry_off() -> None:
    """Set `TELEMETRY_OFF`, where not set yet, for this process and its children; call it before importing the tools."""
    for name, value in TELEMETRY_OFF.items():
        os.environ.setdefault(name, value)
