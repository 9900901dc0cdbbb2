"""A project folder whose plugins are forgotten again after the test."""

import sys

import pytest

from probmetric.runs import source as source_digest
from probmetric.testing import isolated_components


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty folder with params.yaml, which is the working directory; what is registered in it goes with it."""
    (tmp_path / "params.yaml").write_text("datasets: [digits]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with isolated_components():
        yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    for cached in (source_digest._top_folder, source_digest.source_file, source_digest.closure):
        cached.cache_clear()
