"""The console script `probmetric`: hands a step to the workflow's server, or runs the command itself.

Talk with the server, on a stream socket:

    client                                       server
    length, request (JSON), 4 file descriptors   "r": ready
    "g": go                                      process number of the child
    a byte per signal to pass on                 wait status of the child

The end of either side is seen by the other as the end of the stream: the server then kills the child, and the client
waits for the child's end and runs the command itself, which goes on from what is finished.
"""

from __future__ import annotations

import os
import sys

from probmetric.resident.starting import FOLDER

STEPS = frozenset(
    (
        *("prepare", "noise", "data", "train", "fit-posterior", "embed", "evaluate", "certificate"),
        *("figure", "report", "track"),
    )
)
# Need little of what a server imports: while it starts they run themselves, on another core.
LIGHT = frozenset(("prepare", "noise", "data"))
SECONDS_TO_START, SECONDS_TO_ANSWER = 60.0, 0.2
NUMBER = 4  # bytes of a process number or a wait status


def main() -> int:
    """Run the command given, by the workflow's server if there is one; returns the exit status."""
    folder = os.environ.get(FOLDER)
    status = _by_server(folder) if folder and sys.argv[1:] and sys.argv[1] in STEPS else None
    if status is not None:
        return status
    from probmetric.cli import main as command

    return command()


def _by_server(folder: str) -> int | None:
    """Exit status of the command run by a server; None if it has still to be run."""
    from probmetric.resident.starting import connected

    try:
        link = connected(folder)
    except (OSError, ValueError):
        return None
    if link is None:
        return None
    with link:
        try:
            return _Conversation(link).run()
        except OSError:
            return None


class _Conversation:
    def __init__(self, link) -> None:  # type: ignore[no-untyped-def]
        self.link = link

    def run(self) -> int | None:
        """Have the command run; None if the server was lost, and nothing runs any more.

        Raises:
            OSError: the server does not answer in time.
        """
        self.link.settimeout(SECONDS_TO_ANSWER if sys.argv[1] in LIGHT else SECONDS_TO_START)
        _send_request(self.link)
        if self.link.recv(1) != b"r":
            return None
        self.link.settimeout(None)
        with _passed_on(self.link):
            self.link.sendall(b"g")
            child = self._number()
            status = self._number() if child is not None else None
        if status is None:
            _wait_for_end(child)
            return None
        return _end_as(status)

    def _number(self) -> int | None:
        """The next number said; None if the server is gone."""
        said = b""
        while len(said) < NUMBER:
            try:
                part = self.link.recv(NUMBER - len(said))
            except ConnectionError:
                part = b""
            if not part:
                return None
            said += part
        return int.from_bytes(said, "big", signed=True)


def _send_request(link) -> None:  # type: ignore[no-untyped-def]
    import json
    import resource
    import signal
    import socket
    import time

    from probmetric.resident.starting import limited

    umask = os.umask(0)
    os.umask(umask)
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    request = {
        "arguments": sys.argv,
        "path": sys.path,
        "variables": dict(os.environ),
        "umask": umask,
        "limits": {number: resource.getrlimit(number)[0] for number in limited()},
        "ignored": [int(number) for number in ignored],
        "asked": time.time(),
    }
    body = json.dumps(request).encode()
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        socket.send_fds(link, [len(body).to_bytes(NUMBER, "big")], [0, 1, 2, folder])
    finally:
        os.close(folder)
    link.sendall(body)


class _passed_on:  # noqa: N801
    """While the block runs, signals sent to this process go to the child."""

    def __init__(self, link) -> None:  # type: ignore[no-untyped-def]
        self.link = link

    def __enter__(self) -> None:
        import signal

        names = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "XCPU", "TSTP", "CONT", "WINCH")
        signals = [getattr(signal, f"SIG{name}") for name in names]
        self.before = {
            number: signal.signal(number, self._pass_on)
            for number in signals
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def __exit__(self, *_error: object) -> None:
        import signal

        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _frame: object) -> None:
        import contextlib
        import signal

        with contextlib.suppress(OSError):
            self.link.sendall(bytes([number]))
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)


def _wait_for_end(child: int | None) -> None:
    """Wait until a child whose server died has died of it: two processes of a step would be in each other's way."""
    import select

    try:
        handle = os.pidfd_open(child or 0)
    except (OSError, ValueError):
        return
    try:
        select.select([handle], [], [])
    finally:
        os.close(handle)


def _end_as(status: int) -> int:
    """The exit status of a child with this wait status; does not return if a signal ended it."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource
        import signal

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
