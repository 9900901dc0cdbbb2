"""Tensor files (safetensors): the same tensors give the same bytes, and a checksum in the header guards them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probmetric.io._reading import FileError, check_responds, sha256_file
from probmetric.io._writing import atomic_path

_CHECKSUM = "sha256"
_KINDS = {"bool": "BOOL", "uint8": "U8", "bfloat16": "BF16"} | {
    f"{long}{bits}": f"{short}{bits}"
    for long, short, widths in (("int", "I", (8, 16, 32, 64)), ("float", "F", (16, 32, 64)))
    for bits in widths
}
_LONGEST_HEADER = 100 * 2**20


def content_digest(path: str | Path) -> str:
    """Digest of a file's content: the checksum a tensor file carries in its header, else its SHA-256."""
    if Path(path).suffix == ".safetensors":
        check_responds(path)
        with contextlib.suppress(FileNotFoundError), Path(path).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length < _LONGEST_HEADER else b""
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return str(json.loads(header)["__metadata__"][_CHECKSUM])
    return sha256_file(path)


def write_tensors(path: str | Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write NumPy arrays or torch tensors to a safetensors file, atomically, with a checksum in its header.

    Args:
        path: the file.
        tensors: name -> array (all NumPy, or all torch).
        metadata: text -> text, stored in the file's header.

    Raises:
        ValueError: a type the format does not know.
    """
    ready = {name: _dense(tensor) for name, tensor in tensors.items()}
    header = dict(metadata or {})
    header[_CHECKSUM] = _checksum(ready, header)
    order = sorted(ready, key=lambda name: (-ready[name].itemsize, name))
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(_header({name: ready[name] for name in order}, header))
        for name in order:
            file.write(_raw_bytes(ready[name]))


def tensors_digest(tensors: Mapping[str, Any]) -> str:
    """The checksum `write_tensors` gives these tensors without metadata: `content_digest` of that file."""
    return _checksum({name: _dense(tensor) for name, tensor in tensors.items()}, {})


def _dense(tensor: Any) -> Any:
    """A tensor in main memory, its rows one after another."""
    if hasattr(tensor, "detach"):
        return tensor.detach().cpu().contiguous()
    import numpy as np

    return np.ascontiguousarray(tensor)


def _header(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """The start of a safetensors file: length, then as JSON where each tensor lies. Equal content gives equal bytes."""
    entries: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + math.prod(tensor.shape) * tensor.itemsize
        entries[name] = {"dtype": _kind(name, tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text


def _kind(name: str, tensor: Any) -> str:
    found = str(tensor.dtype).removeprefix("torch.")
    if found not in _KINDS:
        raise ValueError(f"tensor {name!r} has type {found}; a safetensors file holds {', '.join(_KINDS)}.")
    return _KINDS[found]


def _checksum(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """SHA-256 over the metadata and over every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(f"{name} {kind} {list(tensor.shape)}".encode())
        digest.update(_raw_bytes(tensor))
    return digest.hexdigest()


def _raw_bytes(tensor: Any) -> Any:
    if hasattr(tensor, "detach"):
        import torch

        tensor = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return tensor.tobytes() if tensor.ndim == 0 else memoryview(tensor).cast("B") if tensor.size else b""


def read_tensors(path: str | Path, framework: str = "numpy") -> tuple[dict[str, Any], dict[str, str]]:
    """Read a safetensors file whole; one with a checksum must agree with it.

    Args:
        path: the file.
        framework: "numpy" or "torch".

    Returns:
        (name -> array or tensor, metadata).

    Raises:
        FileError: missing, truncated, altered or not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    check_responds(path)
    try:
        with safe_open(path, framework="pt" if framework == "torch" else "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; run the step that writes it again.") from error
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"{path} is damaged or truncated ({error}); delete it and run again: only this step is repeated."
        ) from error
    expected = metadata.pop(_CHECKSUM, None)
    if expected is not None and expected != _checksum(tensors, metadata):
        raise FileError(
            f"{path} is damaged: its content does not fit its checksum; delete it and run again: only this step is "
            "repeated."
        )
    return tensors, metadata
