"""`make check` runs the tests of what changed: which ones, on a branch, on main and for files that are new or gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci/changed.py"
FILES = {
    "src/probmetric/__init__.py": "",
    "src/probmetric/io.py": "",
    "src/probmetric/losses/__init__.py": "",
    "src/probmetric/losses/nir.py": "",
    "src/probmetric/planning/expansion.py": "",
    "tests/losses/test_nir.py": "create_loss('nir')",
    "tests/losses/test_other.py": "from probmetric.directional import x",
    "tests/losses/references.py": "",
    "tests/config/test_io.py": "from probmetric.io import read_json",
    "tests/config/test_methods.py": "from probmetric.planning.expansion import expand",
    "tests/training/test_run.py": "from probmetric import io, planning",
    "README.md": "",
    "params.yaml": "",
    "Makefile": "",
}


@pytest.fixture
def repository(tmp_path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci/changed.py")
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "change")


def changed(folder: Path) -> list[str]:
    """The tests to be run."""
    return [word for word in printed(folder) if not word.startswith("-")]


def printed(folder: Path) -> list[str]:
    done = subprocess.run([folder / ".ci/changed.py"], check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("name", "tests"),
    [
        ("src/probmetric/losses/nir.py", ["tests/losses/test_nir.py"]),
        ("src/probmetric/losses/__init__.py", ["tests/losses/test_nir.py", "tests/losses/test_other.py"]),
        ("src/probmetric/io.py", ["tests/config/test_io.py"]),
        ("src/probmetric/planning/expansion.py", ["tests/config/test_methods.py", "tests/training/test_run.py"]),
        ("tests/losses/test_nir.py", ["tests/losses/test_nir.py"]),
        ("tests/losses/references.py", ["tests/losses/test_nir.py", "tests/losses/test_other.py"]),
        ("README.md", ["tests/test_links.py"]),
        ("params.yaml", ["tests/config/test_io.py", "tests/config/test_methods.py"]),
        ("Makefile", []),
    ],
)
def test_what_belongs_to_a_changed_file(repository, name, tests):
    (repository / name).write_text("# changed")
    assert changed(repository) == tests


def test_a_new_file_and_a_removed_one(repository):
    (repository / "src/probmetric/losses/new.py").touch()
    (repository / "tests/losses/test_nir.py").unlink()
    (repository / "tests/losses/test_new.py").write_text("from probmetric.losses.new import new")
    assert changed(repository) == ["tests/losses/test_new.py"]


def test_a_branch_is_compared_with_where_it_left_main(repository):
    git(repository, "checkout", "-q", "-b", "mine")
    (repository / "tests/losses/test_nir.py").write_text("# changed")
    commit(repository)
    commit(repository)
    git(repository, "checkout", "-q", "main")
    (repository / "README.md").write_text("changed by others")
    commit(repository)
    git(repository, "checkout", "-q", "mine")
    assert changed(repository) == ["tests/losses/test_nir.py"]


def test_main_is_compared_with_its_last_commit(repository):
    assert changed(repository) == [], "there is none"
    (repository / "README.md").write_text("changed")
    commit(repository)
    (repository / "params.yaml").write_text("changed: true")
    assert changed(repository) == ["tests/config/test_io.py", "tests/config/test_methods.py", "tests/test_links.py"]


def test_few_tests_are_done_in_one_process(repository):
    (repository / "src/probmetric/losses/nir.py").write_text("# changed")
    assert "-n0" in printed(repository)
    for number in range(30):
        (repository / f"tests/losses/test_{number}.py").write_text("'nir'")
    assert "-n0" not in printed(repository)


ROOM = {
    "src/probmetric/losses/_shared.py": "",
    "src/probmetric/losses/__init__.py": "if TYPE_CHECKING:\n    from probmetric.losses._shared import (\n  x,\n)",
    "src/probmetric/losses/arcface.py": "from probmetric.losses._shared import x",
    "src/probmetric/losses/based.py": "def f(base='nir'): create_loss(base)",
    "src/probmetric/losses/importing.py": "from probmetric.losses import based",
    "src/probmetric/losses/nir.py": '"""Other than arcface."""',
    "src/probmetric/losses/nir_more.py": "",
    "src/probmetric/losses/unlisted.py": "",
    "src/probmetric/cli.py": "from probmetric.training.loop import train",
    "src/probmetric/training/loop.py": "import probmetric.losses.nir",
    "tests/losses/conftest.py": "import helping\n\ndef helped(): ...",
    "tests/losses/helping.py": "create_loss('arcface')",
    "tests/losses/test_all.py": "from probmetric.losses import list_losses",
    "tests/losses/test_exported.py": "from probmetric.losses import x",
    "tests/losses/test_far.py": "from probmetric.cli import main",
    "tests/losses/test_fixture.py": "def test(helped): ...",
    "tests/losses/test_helped.py": "from helping import case",
    "tests/losses/test_named.py": "create_loss('importing')",
    "tests/losses/test_nir.py": "create_loss('nir')",
    "tests/losses/test_process.py": "import subprocess",
}
ALWAYS = {"all", "process"}
OF_ARCFACE, OF_NIR = {"fixture", "helped"}, {"nir", "named", "far"}


@pytest.fixture
def room(repository) -> Path:
    for name, text in ROOM.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(text)
    commit(repository)
    commit(repository)
    return repository


@pytest.mark.parametrize(
    ("module", "reaching"),
    [
        ("arcface", OF_ARCFACE),
        ("nir", OF_NIR),
        ("nir_more", set()),
        ("based", {"named"}),
        ("_shared", OF_ARCFACE | {"exported"}),
    ],
)
def test_a_test_that_no_change_can_reach_is_left_out(room, module, reaching):
    """What reaches: imports, also through other rooms, fixtures and packages that pass names on; names as strings."""
    (room / f"src/probmetric/losses/{module}.py").write_text("# changed")
    found = {Path(name).stem.removeprefix("test_") for name in changed(room)}
    assert found == ALWAYS | reaching


@pytest.mark.parametrize(
    ("names", "components"),
    [
        (["losses/nir.py"], "based,importing,nir"),
        (["losses/arcface.py"], "arcface"),
        (["losses/arcface.py", "io.py"], "arcface"),
        (["losses/arcface.py", "losses/nir_more.py"], "arcface,nir_more"),
        (["losses/arcface.py", "losses/_shared.py"], ""),
        (["losses/arcface.py", "../../tests/losses/helping.py"], ""),
        (["io.py"], ""),
    ],
)
def test_of_tests_with_a_case_for_each_component_only_those_that_changed(room, names, components):
    """`based` and `importing` depend on `nir`; where shared modules or tests changed too, all components count."""
    for name in names:
        path = (room / "src/probmetric" / name).resolve()
        path.write_text(path.read_text() + "\n# changed")
    options = [word for word in printed(room) if word.startswith("--")]
    assert options == ([f"--components=losses={components}"] if components else [])


def test_cases_of_other_components_are_deselected():
    """By class and by parameter; what is no case of a component stays, and so do other rooms."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "--collect-only", "--components=losses=nir"]
    files = [
        "tests/losses/test_contract.py",
        "tests/losses/test_base.py",
        "tests/uncertainty/test_uncertainty_contract.py",
    ]
    done = subprocess.run([*command, *files], cwd=SCRIPT.parents[1], check=True, capture_output=True, text=True)
    assert "test_contract.py::Test_nir::" in done.stdout
    assert "test_contract.py::test_has_a_reference[nir]" in done.stdout
    assert "test_value_and_gradient_equal_the_reference[nir-" in done.stdout
    assert "test_base.py::test_unit_of_zero_is_zero_without_gradient" in done.stdout
    assert "test_uncertainty_contract.py::Test_norm::" in done.stdout
    assert "arcface" not in done.stdout
