"""Which device a job computes on.

A scheduler assigns a device by CUDA_VISIBLE_DEVICES, and only visible devices are used. If a job sees several devices
(one machine, several concurrent jobs), it claims one by a lock file. The operating system drops the lock when the
process ends, however it ends, so no device stays claimed. If there are more jobs than devices, jobs share the devices
evenly; no job waits.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import getpass
import itertools
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from probmetric.config import ConfigError
from probmetric.io import try_lock

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


def visible_devices() -> list[str]:
    """Return the identity of each visible CUDA device, in torch's order: its number, or its UUID if so assigned."""
    count = torch.cuda.device_count()
    assigned = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = assigned.split(",") if assigned else [str(number) for number in range(count)]
    return [name.strip() for name in names[:count]]


@contextlib.contextmanager
def claim_device(request: str = "auto") -> Iterator[torch.device]:
    """Yield the device to compute on; a CUDA device chosen here stays claimed until the block ends.

    Args:
        request: "auto" (a CUDA device if there is one, else the CPU), "cpu", "cuda", or "cuda:1".

    Raises:
        ConfigError: `request` names no device of this machine.
    """
    devices = [] if request == "cpu" else visible_devices()
    allowed = ["auto", "cpu", *(["cuda"] if devices else []), *(f"cuda:{n}" for n in range(len(devices)))]
    if request not in allowed:
        raise ConfigError(f"device {request!r} is not available here; allowed: {', '.join(allowed)}.")
    if not devices:
        yield torch.device("cpu")
    elif ":" in request:
        yield _made_current(torch.device(request))
    elif len(devices) == 1:
        yield _made_current(torch.device("cuda:0"))
    else:
        with _first_free(devices) as number:
            yield _made_current(torch.device("cuda", number))


def _made_current(device: torch.device) -> torch.device:
    """Make `device` this process's current one, so that no context is allocated on device 0 as well."""
    torch.cuda.set_device(device)
    return device


def pick_device(request: str = "auto") -> torch.device:
    """Return the device to compute on until the process ends; see `claim_device`."""
    stack = contextlib.ExitStack()
    device = stack.enter_context(claim_device(request))
    atexit.register(stack.close)
    return device


@contextlib.contextmanager
def _first_free(devices: Sequence[str]) -> Iterator[int]:
    """Yield the number of the first device with the fewest claims; the claim is held until the block ends.

    The locks lie in a folder of this user in the system's temporary folder.
    """
    folder = Path(tempfile.gettempdir()) / f"probmetric-devices-{getpass.getuser()}"
    folder.mkdir(parents=True, exist_ok=True)
    for turn in itertools.count():
        for number, name in enumerate(devices):
            path = folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', name)}.{turn}.lock"
            with try_lock(path) as held:
                if held:
                    yield number
                    return


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of up to 32 MiB for reuse instead of returning them to the kernel.

    By default every step returns its activations' memory and then faults the same pages in again: a step of the compact
    net on a CPU takes 1.17 to 1.33 times as long. Results do not change.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_MMAP_THRESHOLD, 32 * 2**20)
