"""A process that has run every step once and forks a child per command, so that an injected fault costs no start.

Reads one JSON object per line from standard input and answers each with one line:

    {"folder": ..., "arguments": [...], "output": file, "fault": {...}}  ->  {"status": ..., "events": n, "seconds": s}

Faults: {"signal": 9, "event": k} sends the signal to itself when it touches the file system for the k-th time;
{"memory": megabytes, "event": k} lets it have no more memory from there on; {"file_size": bytes} is `ulimit -f`;
{"cut": bytes} kills it in the middle of writing, when the first file grows beyond that size. None of them looks at a
clock. A status below 0 is the signal that ended the child. The fault {"none": 0} runs the command in this very process,
which imports what its children will need.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

TOUCHES = {
    *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir", "os.listdir", "os.chmod", "os.truncate"),
    *("shutil.rmtree", "shutil.copyfile", "fcntl.flock", "mmap.__new__", "sqlite3.connect", "os.utime"),
}


class Counter:
    """Counts how often the process touches the file system, and does something the k-th time."""

    def __init__(self, at: int | None, action: Any) -> None:
        self.count, self.at, self.action = 0, at, action

    def __call__(self, event: str, _arguments: tuple[object, ...]) -> None:
        if event in TOUCHES:
            self.count += 1
            if self.count == self.at:
                self.action()


def child(command: dict[str, Any], answer: int) -> None:
    fault = command["fault"]

    def act() -> None:
        if "memory" in fault:
            allowed = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (allowed + fault["memory"] * 2**20,) * 2)
        else:
            os.kill(os.getpid(), fault["signal"])

    os.chdir(command["folder"])
    with Path(command["output"]).open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for name, end in (("file_size", signal.SIG_IGN), ("cut", signal.SIG_DFL)):
        if name in fault:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault[name],) * 2)
            signal.signal(signal.SIGXFSZ, end)
    counter = Counter(fault.get("event"), act)
    sys.addaudithook(counter)
    from probmetric.cli import main

    code = 1
    try:
        code = main(command["arguments"])
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    with contextlib.suppress(OSError, MemoryError):
        os.write(answer, str(counter.count).encode())
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def here(command: dict[str, Any]) -> int:
    """Run the command without a child."""
    from probmetric.cli import main

    os.chdir(command["folder"])
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(Path(command["output"]).open("w"))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        return main(command["arguments"])


def ended(number: int, limit: float = 240.0) -> int:
    """Wait status of the child."""
    started = time.monotonic()
    while True:
        found, status = os.waitpid(number, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() - started > limit:
            os.kill(number, signal.SIGKILL)
            limit = float("inf")
        time.sleep(0.002)


def serve() -> None:
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    tqdm.monitor_interval = 0  # no thread of its own: this process forks
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "none" in command["fault"]:
            print(json.dumps({"status": here(command), "events": 0, "seconds": 0.0}), flush=True)
            continue
        reading, writing = os.pipe()
        started = time.perf_counter()
        number = os.fork()
        if number == 0:
            os.close(reading)
            child(command, writing)
        os.close(writing)
        status = ended(number)
        seconds = time.perf_counter() - started
        events = int(os.read(reading, 20) or 0)
        os.close(reading)
        print(json.dumps({"status": status, "events": events, "seconds": seconds}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    serve()
