"""Versions, source revision and hardware of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import probmetric

PACKAGES = ("numpy", "safetensors", "timm")


def versions() -> dict[str, str]:
    """Return versions of Python, of this package with its Git revision, and of the numerical libraries."""
    installed = {name: _installed(name) for name in PACKAGES}
    return {
        "probmetric": probmetric.__version__,
        "git": _git_revision(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: version for name, version in installed.items() if version},
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """Return facts about the machine and the device that computes."""
    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
    }
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return facts


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_revision() -> str:
    """Return the commit of the source tree, with `-dirty` if it has changes; "unknown" outside a repository."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    folder = Path(__file__).parent
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
