"""How many CUDA devices a workflow's jobs may use, found without PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")


def device_count(environment: Mapping[str, str] = os.environ, driver: Path = DRIVER) -> int:
    """Devices CUDA_VISIBLE_DEVICES names, or where it is not set those the NVIDIA driver knows.

    Args:
        environment: variables of the process that starts the jobs.
        driver: folder in which the driver has one folder per device.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return len(list(driver.iterdir())) if driver.is_dir() else 0
    names = [name.strip() for name in named.split(",")]
    return len([name for name in names if name and name != "-1"])
