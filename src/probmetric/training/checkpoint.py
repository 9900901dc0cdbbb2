"""Checkpoints that survive a kill at any moment and are verified before use.

A checkpoint is one file: a line with the SHA-256 of the rest, then a `torch.save` archive of tensors and plain
values. It is written to a temporary sibling and renamed; the newest two are kept. Reading checks the digest first
and loads with `weights_only=True`, so a damaged or foreign file can neither crash the reader nor run code.
"""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
from pathlib import Path
from typing import Any

import torch

from probmetric.io import atomic_path, check_readable, remove_abandoned

log = logging.getLogger(__name__)

_MAGIC = b"probmetric-checkpoint 1 "
_KEEP = 2


class DamagedCheckpointError(RuntimeError):
    """A checkpoint file is truncated or altered."""


class Checkpoints:
    """The checkpoints of one run, in its state folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def files(self) -> list[Path]:
        """Return checkpoint files, oldest first."""
        return sorted(self.folder.glob("step-*.checkpoint"))

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Store `state` (tensors and plain values) as of optimiser step `step`."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getbuffer()
        with atomic_path(self.folder / f"step-{step:09d}.checkpoint") as temporary, temporary.open("wb") as file:
            file.write(_MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n")
            file.write(content)
        for old in self.files()[:-_KEEP]:
            old.unlink(missing_ok=True)

    def load(self, identity: str) -> dict[str, Any] | None:
        """Return the newest sound checkpoint whose `identity` entry is `identity`; None if there is none.

        Damaged files are reported and set aside as `*.damaged`; those of other settings or data are removed.
        """
        for path in reversed(self.files()):
            try:
                state = read_checkpoint(path)
            except DamagedCheckpointError as error:
                path.replace(path.with_suffix(".damaged"))
                log.warning("%s; set aside as %s.damaged, going on from the previous one.", error, path.stem)
                continue
            if state.get("identity") == identity:
                return state
            log.warning("%s belongs to other settings, data or code; training starts anew.", path)
            path.unlink()
        return None

    def remove(self) -> None:
        """Delete every checkpoint, the damaged ones, and what killed processes left of theirs."""
        if self.folder.exists():
            remove_abandoned(self.folder, "step-")
        for path in self.folder.glob("step-*"):
            path.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read and verify one checkpoint file.

    Raises:
        DamagedCheckpointError: the content does not match its digest, or is no checkpoint.
    """
    check_readable(path)
    header, _, content = path.read_bytes().partition(b"\n")
    if not header.startswith(_MAGIC) or hashlib.sha256(content).hexdigest().encode() != header[len(_MAGIC) :]:
        raise DamagedCheckpointError(f"checkpoint {path} is truncated or damaged")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise DamagedCheckpointError(f"checkpoint {path} holds something else than tensors and plain values") from error
    return state
