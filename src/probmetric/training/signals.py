"""Stopping in good order when a scheduler says so."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGTERM has arrived since; the previous handler returns afterwards.

    SLURM sends SIGTERM before a time limit kills a job, Snakemake when a workflow is cancelled. Signals reach the
    main thread only: in another thread nothing is installed and the answer stays False.
    """
    if threading.current_thread() is not threading.main_thread():
        yield bool
        return
    stop = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    try:
        yield stop.is_set
    finally:
        signal.signal(signal.SIGTERM, previous)
