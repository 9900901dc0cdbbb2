"""How the training step is computed: kernels and compilation. Switches of the process are restored afterwards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import nn

from probmetric.config import ConfigError
from probmetric.training.diagnosis import TrainingError

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_REPEATABLE = ":4096:8"


@contextlib.contextmanager
def backend(*, deterministic: bool) -> Iterator[None]:
    """Choose kernels for the block; the settings from before are restored afterwards.

    With `deterministic`, operations that may give other bits the next time are refused, and cuBLAS gets the fixed
    workspace that it needs for this. Otherwise cuDNN tries its convolutions once per shape and takes the fastest.

    Raises:
        TrainingError: an operation of the run has no deterministic kernel.
    """
    cudnn = torch.backends.cudnn
    before = _determinism()
    flags, workspace = (cudnn.deterministic, cudnn.benchmark), os.environ.get(_CUBLAS)
    try:
        cudnn.deterministic, cudnn.benchmark = deterministic, not deterministic
        if deterministic:
            os.environ.setdefault(_CUBLAS, _REPEATABLE)
            torch.use_deterministic_algorithms(True)
        yield
    except RuntimeError as error:
        if "deterministic implementation" not in str(error):
            raise
        raise TrainingError(
            f"training.deterministic is true, but {str(error).splitlines()[0]} "
            "Set training.deterministic to false, or use another loss or backbone."
        ) from error
    finally:
        cudnn.deterministic, cudnn.benchmark = flags
        if before != _determinism():  # the call imports torch's compiler: half of what a short training takes
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        if workspace is None:
            os.environ.pop(_CUBLAS, None)


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def compiled(network: nn.Module, device: torch.device) -> nn.Module:
    """Compile `network` for `device`; it shares parameters and names with the original.

    Raises:
        ConfigError: this machine has no working compiler.
    """
    try:
        torch.compile(_probe)(torch.ones(8, device=device))
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"training.compile is true, but torch.compile fails on {device.type} here: {first} "
            "Install a C++ compiler (CPU: g++ or clang++; CUDA: Triton and gcc), or set training.compile to false."
        ) from error
    result: nn.Module = torch.compile(network)  # type: ignore[assignment]
    return result


def _probe(values: torch.Tensor) -> torch.Tensor:
    return (values * 2.0 + 1.0).relu()
