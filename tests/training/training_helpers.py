"""Settings of runs that last a second."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from probmetric.config import EncoderSettings


def quick_settings(**changes: object) -> EncoderSettings:
    """Settings of a run of a few steps; training options and settings may be given together."""
    training = {"epochs": 3, "batch_size": 20, "images_per_class": 4, "steps_per_epoch": 6}
    own = {key: changes.pop(key) for key in list(changes) if key not in EncoderSettings.model_fields}
    fields: dict[str, object] = {"dataset": "digits", "method": "quick", "loss": "cosine", "dim": 8} | changes
    fields.setdefault("backbone", {"name": "compact", "width": 4})
    return EncoderSettings(**fields, training=training | own)


def run_as_ranks(count: int, program: Path, *arguments: object) -> None:
    """Run `program` as `count` processes that can meet, and wait for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(program), *map(str, arguments)]
    running = [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(count)
    ]
    messages = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0] * count, messages
