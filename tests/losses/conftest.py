"""Cases and batches shared by the loss tests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))
for module in sorted(path.stem for path in HERE.glob("references*.py")):
    importlib.import_module(module)


# The tensors here are tiny: threads only wait for each other, for minutes where the cores are shared.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.default_generator.manual_seed(0)  # not `torch.manual_seed`: it notes a stack trace for each kind of device
