"""What all tests share: one place for compiled kernels, and fixtures that are made once for all workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from built_once import BuiltOnce, package_files

TESTS = Path(__file__).parent
# Fixture of a session or module that takes long -> the worker all its tests go to (`--dist loadgroup`).
GROUPS = {"whole": "faults", "embedded": "tables of the papers"}


def pytest_configure(config: pytest.Config) -> None:
    """Every worker and every process a test starts keeps and finds numba's machine code in one folder."""
    if hasattr(config, "cache"):
        os.environ.setdefault("NUMBA_CACHE_DIR", str(config.cache.mkdir("numba")))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests below tests/faults are marked by where they lie; those of one workspace stay with one worker."""
    for item in items:
        if TESTS / "faults" in item.path.parents:
            item.add_marker("faults")
        fixtures = getattr(item, "fixturenames", ())
        for fixture in GROUPS.keys() & set(fixtures):
            item.add_marker(pytest.mark.xdist_group(GROUPS[fixture]))
        if "pristine" in fixtures and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1800))  # the first one runs a whole workflow, the others wait for it


@pytest.fixture(scope="session")
def built_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BuiltOnce:
    """Makes a folder unless this state of the source has it already (`pytest --cache-clear` forgets all)."""
    config = request.config
    return BuiltOnce(config.cache.mkdir("built") if hasattr(config, "cache") else tmp_path_factory.mktemp("built"))


# Of datasets whose preparation with their defaults takes tens of seconds: all that is left out is training images.
SMALLER = {"letters_exact": {"train_per_class": 24}}


@pytest.fixture(scope="session")
def prepared_dataset(built_once: BuiltOnce):
    """Gives the prepared folder of an embedded dataset with its defaults (but `SMALLER`). Never change it: copy it."""
    from probmetric.data import prepare_dataset

    def prepare(name: str) -> Path:
        def make(folder: Path) -> None:
            prepare_dataset(name, folder / name, progress=False, **SMALLER.get(name, {}))

        return built_once.folder(f"prepared-{name}", make, package_files()) / name

    return prepare
