"""`make check` runs the tests of what changed: which ones, on a branch, on main and for files that are new or gone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci/changed.py"
CONTRACTS = "tests/losses/test_contract.py"
FILES = {
    "src/probmetric/losses/nir.py": "",
    "src/probmetric/io.py": "",
    "src/probmetric/planning/runs.py": "",
    "tests/losses/test_nir.py": "",
    "tests/losses/references.py": "",
    "tests/config/test_io.py": "from probmetric.io import read_json",
    "tests/config/test_methods.py": "from probmetric.planning.runs import expand",
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
    done = subprocess.run([folder / ".ci/changed.py"], check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("name", "tests"),
    [
        ("src/probmetric/losses/nir.py", ["tests/losses"]),
        ("src/probmetric/io.py", ["tests/config/test_io.py"]),
        ("src/probmetric/planning/runs.py", ["tests/config/test_methods.py", "tests/training/test_run.py"]),
        ("tests/losses/test_nir.py", ["tests/losses/test_nir.py"]),
        ("tests/losses/references.py", ["tests/losses"]),
        ("README.md", ["tests/test_links.py"]),
        ("params.yaml", ["tests/config"]),
        ("Makefile", []),
    ],
)
def test_what_belongs_to_a_changed_file(repository, name, tests):
    (repository / name).write_text("# changed")
    assert changed(repository) == tests


def test_a_new_file_and_a_removed_one(repository):
    (repository / "src/probmetric/losses/new.py").touch()
    (repository / "tests/losses/test_nir.py").unlink()
    assert changed(repository) == ["tests/losses", f"--deselect={CONTRACTS}::Test_nir::"]


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
    assert changed(repository) == ["tests/config", "tests/test_links.py"]


LOSSES = {
    "_shared.py": "",
    "arcface.py": "from probmetric.losses._shared import x",
    "based.py": "def f(base='nir'): create_loss(base)",
    "importing.py": "from probmetric.losses import based",
    "nir.py": '"""Other than arcface."""',
    "nir_more.py": "",
}


@pytest.fixture
def losses(repository) -> Path:
    for name, text in LOSSES.items():
        (repository / "src/probmetric/losses" / name).write_text(text)
    commit(repository)
    commit(repository)
    return repository


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        (["src/probmetric/losses/nir.py"], ["arcface", "nir_more"]),
        (["src/probmetric/losses/arcface.py"], ["based", "importing", "nir", "nir_more"]),
        (["src/probmetric/losses/arcface.py", "tests/losses/test_nir.py"], ["based", "importing", "nir", "nir_more"]),
        (["src/probmetric/losses/arcface.py", "README.md"], ["based", "importing", "nir", "nir_more"]),
        (["src/probmetric/losses/arcface.py", "src/probmetric/losses/nir_more.py"], ["based", "importing", "nir"]),
        (["src/probmetric/losses/arcface.py", "src/probmetric/losses/_shared.py"], []),
        (["src/probmetric/losses/arcface.py", "tests/losses/references.py"], []),
        (["src/probmetric/losses/arcface.py", CONTRACTS], []),
        (["README.md"], []),
    ],
)
def test_contracts_that_no_changed_loss_can_reach_are_left_out(losses, names, left_out):
    """`based` and `importing` depend on `nir`; with shared modules, references and the contract itself none is."""
    for name in names:
        (losses / name).write_text("# changed")
    assert [test for test in changed(losses) if test.startswith("--")] == [
        f"--deselect={CONTRACTS}::Test_{name}::" for name in left_out
    ]
    assert ("tests/losses" in changed(losses)) == (names != ["README.md"])
