"""Offices: one for all tests that leave its server alive, one for each test that does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from resident_helpers import Office, open_office


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """One server for all tests that leave it alive."""
    office = open_office(tmp_path_factory.mktemp("office"))
    yield office
    office.close()


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Office]:
    office = open_office(tmp_path)
    yield office
    office.close()
