"""A reader of images whose process dies. Decoding processes import this module, so it imports no test's helpers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np


class Deadly:
    """Reads images; the process that reads row 100 for the first time is killed, as by the kernel's OOM killer."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, row: int) -> np.ndarray:
        if row == 100 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full((2, 2, 1), row % 256, dtype=np.uint8)
