"""Shared fixtures: real handwriting in a closed-set and an open-set split, and one thread (bit-equal results)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from probmetric.data import prepare_dataset


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_dataset("digits", tmp_path_factory.mktemp("prepared") / "digits", progress=False)


@pytest.fixture(scope="session")
def digits_open(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_dataset("digits_open", tmp_path_factory.mktemp("prepared") / "digits_open", progress=False)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
