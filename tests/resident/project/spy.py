"""Imported by every command of this project: tells what the process sees, then does what SPY asks."""

import json
import os
import random
import resource
import signal
import sys
import threading
from pathlib import Path

SIGNALS = ("SIGINT", "SIGTERM", "SIGPIPE", "SIGXFSZ", "SIGHUP")


def handler(name):
    """The name of a function, or what else handles the signal: the address of a function differs."""
    found = signal.getsignal(getattr(signal, name))
    return getattr(found, "__qualname__", str(found))


def facts():
    import numpy
    import torch
    from threadpoolctl import threadpool_info

    mask = os.umask(0)
    os.umask(mask)
    (numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()
    return {
        "arguments": sys.argv[1:],
        "folder": str(Path.cwd()),
        "path": sys.path,
        "variable": os.environ.get("COLOUR"),
        "umask": mask,
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "size": resource.getrlimit(resource.RLIMIT_FSIZE),
        "signals": [handler(name) for name in SIGNALS],
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "torch": torch.get_num_threads(),
        "blas": sorted({found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"}),
        "threads": threading.active_count(),
        "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering],
        "encoding": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors],
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "random": [torch.rand(1).item(), numpy.random.rand(), random.random()],  # noqa: NPY002
    }


def act(wish):
    if wish == "tell":
        print(json.dumps(facts()))
    elif wish == "wait":
        print("waiting", flush=True)
        signal.pause()
    elif wish == "spend":
        total = 0
        while sum(os.times()[:2]) < 0.5:
            total += 1
    elif wish == "fail":
        raise ValueError("this is wrong")
    elif wish == "text":
        sys.exit("the end")
    elif wish == "seven":
        sys.exit(7)
    elif wish == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif wish == "crash":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()


act(os.environ.get("SPY", ""))
