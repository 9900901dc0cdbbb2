"""Prepared folders shared by the data tests; copies for the tests that damage them."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def prepared(prepared_dataset, tmp_path_factory) -> Path:
    """Folder with the embedded datasets, prepared with their defaults."""
    root = tmp_path_factory.mktemp("prepared")
    for name in ("digits", "digits_open", "glyphs", "glyphs_closed", "other_scripts", "symbols", "letters_exact"):
        shutil.copytree(prepared_dataset(name), root / name)
    return root


@pytest.fixture
def digits_copy(prepared, tmp_path) -> Path:
    return Path(shutil.copytree(prepared / "digits", tmp_path / "digits"))
