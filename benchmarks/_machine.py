"""What benchmarks share: the command line, what is said of the machine, where the report goes."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with `--output`; `description` is the benchmark's docstring."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--output", type=Path, help="write the report there as JSON")
    return found


def hardware(*packages: str, device: torch.device | None = None) -> dict[str, Any]:
    """What the numbers were measured on, and how busy it was.

    Args:
        packages: packages whose versions belong to the numbers; those that are not installed are left out.
        device: where PyTorch computes, if it does.
    """
    found: dict[str, Any] = {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    if packages:
        found["versions"] = {name: version for name in packages if (version := _version(name))}
    return found if device is None else found | _torch(device)


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _torch(device: torch.device) -> dict[str, Any]:
    import torch

    cuda = device.type == "cuda"
    return {
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name(device) if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
    }


def keep(report: Mapping[str, Any], output: Path | None) -> None:
    """Print a report, and write it where it was asked for."""
    text = json.dumps(report, indent=1)
    print(text)
    if output:
        output.write_text(text + "\n", encoding="utf-8")
