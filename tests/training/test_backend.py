"""Deterministic kernels and compiled encoders: what they change, and what they leave as it was."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_helpers import quick_settings

from probmetric.config import ConfigError
from probmetric.io import read_tensors
from probmetric.training.backend import backend, compiled
from probmetric.training.diagnosis import TrainingError
from probmetric.training.run import train_run


def switches() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    return torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark, workspace


@pytest.mark.parametrize("deterministic", [True, False])
def test_switches_hold_for_the_block_only(deterministic: bool) -> None:
    before = switches()
    workspace = ":4096:8" if deterministic else before[3]
    with backend(deterministic=deterministic):
        assert switches() == (deterministic, deterministic, not deterministic, workspace)
    assert switches() == before
    with contextlib.suppress(KeyError), backend(deterministic=deterministic):
        raise KeyError
    assert switches() == before


@pytest.mark.processes
def test_ordinary_training_does_not_import_the_compiler() -> None:
    program = (
        "import sys\n"
        "from probmetric.config import Training\n"
        "from probmetric.losses import create_loss\n"
        "from probmetric.models import create_encoder\n"
        "from probmetric.training.backend import backend\n"
        "from probmetric.training.optimizer import create_optimizer\n"
        "with backend(deterministic=False):\n"
        "    encoder, loss = create_encoder('compact', dim=2), create_loss('contrastive', num_classes=2, dim=2)\n"
        "    optimizer = create_optimizer(Training(), encoder, loss)\n"
        "    optimizer.zero_grad()\n"
        "    optimizer.step()\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_operation_without_such_a_kernel_is_named() -> None:
    with pytest.raises(TrainingError, match=r"put_.*training\.deterministic to false"), backend(deterministic=True):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))


def test_the_caller_s_own_choice_returns() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with backend(deterministic=True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_deterministic_training_refuses_other_kernels_while_it_runs(digits: Path, tmp_path: Path) -> None:
    """On the CPU the weights are the same with and without; the switch is on during the run, off after it."""
    seen: list[bool] = []
    weights = []
    for choice in (True, False):
        folder = tmp_path / str(choice)
        settings = quick_settings(loss="proxy_anchor", epochs=2, deterministic=choice)
        places = {"prepared_folder": digits, "run_folder": folder, "state_folder": folder / "state"}
        train_run(settings, **places, on_epoch=lambda _: seen.append(torch.are_deterministic_algorithms_enabled()))
        weights.append((folder / "model_last.safetensors").read_bytes())
    assert seen == [True, True, False, False]
    assert weights[0] == weights[1]
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the compiler's own processes
def test_compiled_training_is_the_plain_one_under_the_same_names(digits: Path, tmp_path: Path) -> None:
    tensors = []
    for choice in (True, False):
        folder = tmp_path / str(choice)
        settings = quick_settings(loss="proxy_anchor", epochs=1, compile=choice, optimizer="sgd", learning_rate=1e-3)
        train_run(settings, prepared_folder=digits, run_folder=folder, state_folder=folder / "state")
        tensors.append(read_tensors(folder / "model.safetensors", framework="torch")[0])
    compiled, plain = tensors
    assert compiled.keys() == plain.keys()
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, k=name: f"{k}: {m}")


@pytest.mark.slow
@pytest.mark.processes
def test_without_a_compiler_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch import _dynamo
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", (None, "/nowhere/compiler"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    _dynamo.reset()
    with pytest.raises(ConfigError, match=r"torch\.compile fails on cpu here: .*set training\.compile to false"):
        compiled(torch.nn.Linear(2, 2), torch.device("cpu"))
    _dynamo.reset()
