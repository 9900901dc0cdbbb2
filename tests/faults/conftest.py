"""A finished tiny workspace, copies of it, and the nursery in which steps run and are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_helpers import STEPS, Nursery, Tiny, write_workspace


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.stdin.close()
    nursery.process.wait(timeout=30)
    nursery.stdout.close()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Tiny:
    """The workspace after an undisturbed run of every step, MLflow's schema included. Do not change it: `tiny`."""
    tiny = Tiny(tmp_path_factory.mktemp("whole") / "tiny", nursery)
    write_workspace(tiny.folder)
    for step in STEPS:
        outcome = tiny.run(step, none=0)
        assert outcome.status == 0, f"{step}: {outcome.output[-3000:]}"
    return tiny


@pytest.fixture
def tiny(whole: Tiny, tmp_path: Path) -> Tiny:
    return whole.copy(tmp_path / "tiny")
