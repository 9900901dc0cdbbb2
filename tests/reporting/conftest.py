from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fabricated_runs import Workspace, build_workspace, gathered

from probmetric.reporting.experiment import ReportContext


@pytest.fixture(scope="session")
def built_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built")
    build_workspace(root)
    return root


@pytest.fixture
def workspace(built_workspace: Path, tmp_path: Path) -> Workspace:
    """A fabricated repository of this test's own."""
    shutil.copytree(built_workspace, tmp_path / "repository")
    return Workspace(tmp_path / "repository")


@pytest.fixture
def study(workspace: Workspace) -> ReportContext:
    """The context of the fabricated experiment with its long table."""
    return gathered(workspace.context())
