"""Shared fixtures: real handwriting in a closed-set and an open-set split, and one thread (bit-equal results)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def digits(prepared_dataset) -> Path:
    return prepared_dataset("digits")


@pytest.fixture(scope="session")
def digits_open(prepared_dataset) -> Path:
    return prepared_dataset("digits_open")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
