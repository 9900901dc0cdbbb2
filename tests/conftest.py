"""What all tests share: one place for compiled kernels, and fixtures that are made once for all workers."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from built_once import ROOT, BuiltOnce, preparing_files

TESTS = Path(__file__).parent
LONGEST = TESTS / "workflow"  # tests here take up to minutes
# Fixture of a session or module that takes long -> the worker all its tests go to (`--dist loadgroup`).
GROUPS = {
    "whole": "faults",
    "embedded": "tables of the papers",
    "own_project": "own project",
    "together": "two processes",
    "site": "documentation",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--components",
        action="append",
        default=[],
        metavar="ROOM=NAME,NAME",
        help="of the tests that have a case for each component of a room, these cases only (.ci/changed.py says which)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C reaches what tests start, also below `nohup` or `&`; numba's machine code lies in one folder for all.

    Files written by this process need not outlast a power cut; processes that tests start wait for the disk.
    """
    os.fsync = lambda _: None
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "cache"):
        os.environ.setdefault("NUMBA_CACHE_DIR", str(config.cache.mkdir("numba")))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests below tests/faults, keep those of one workspace with one worker, and begin with the longest.

    A long test that begins last keeps one worker busy while the others have nothing left to do.
    """
    for option in config.getoption("--components"):
        leave_out(items, config, *option.split("="))
    for item in items:
        if TESTS / "faults" in item.path.parents:
            item.add_marker("faults")
        fixtures = getattr(item, "fixturenames", ())
        for fixture in GROUPS.keys() & set(fixtures):
            item.add_marker(pytest.mark.xdist_group(GROUPS[fixture]))
        if "pristine" in fixtures and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1800))  # the first one runs a whole workflow, the others wait for it
    items.sort(key=lambda item: LONGEST not in item.path.parents)


def leave_out(items: list[pytest.Item], config: pytest.Config, room: str, names: str) -> None:
    """Deselect the cases of the room's other components."""
    tests, folder = TESTS / Path(room).parts[0], ROOT / "src/probmetric" / room
    others = {path.stem for path in folder.glob("[!_]*.py")} - set(names.split(","))
    out = [item for item in items if tests in item.path.parents and component_of(item) in others]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in set(out)]


def component_of(item: pytest.Item) -> str | None:
    """Name of the component a test is a case of: its class's, or that of its parameter `name` or `case`."""
    given = getattr(getattr(item, "callspec", None), "params", {})
    case = given.get("name", given.get("case", getattr(item, "cls", None)))
    return getattr(case, "name", case if isinstance(case, str) else None)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """The plugin imports Hypothesis, for a second, to report what it found: nothing where no test has imported it."""
    manager = session.config.pluginmanager
    if "hypothesis" not in sys.modules and manager.hasplugin("hypothesispytest"):
        manager.unregister(name="hypothesispytest")


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

        return built_once.folder(f"prepared-{name}", make, preparing_files(name)) / name

    return prepare


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty folder with params.yaml, which is the working directory; what is registered in it goes with it."""
    from probmetric.runs import source
    from probmetric.testing import isolated_components

    (tmp_path / "params.yaml").write_text("datasets: [digits]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with isolated_components():
        yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    for cached in (source._top_folder, source.source_file, source._targets, source.closure):
        cached.cache_clear()
