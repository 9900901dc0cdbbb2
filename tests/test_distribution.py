"""The wheel is whole: it works in an empty folder, without this checkout, and says where it needs a project."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import probmetric
from probmetric.cli import parser
from probmetric.planning.own_data import FILES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/probmetric"
pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", *FILES):
        (copy / name).symlink_to(ROOT / name)
    (copy / "src").mkdir()
    (copy / "src/probmetric").symlink_to(SOURCE)
    script = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", script, str(copy)], cwd=copy, check=True, capture_output=True, text=True
    )
    return copy / built.stdout.split()[-1]


def test_the_sdist_holds_what_a_wheel_is_made_of_and_no_tests(tmp_path):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in tracked.splitlines():
        if name.partition("/")[0] in ("src", "tests", "workflow") or "/" not in name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).symlink_to(ROOT / name)
    script = "from setuptools import build_meta; print(build_meta.build_sdist('.'))"
    built = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True)
    with tarfile.open(tmp_path / built.stdout.split()[-1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not [name for name in names if name.startswith("tests")]
    package = ("src/probmetric", "workflow", *FILES)
    assert not {name for name in tracked.splitlines() if name.startswith(package)} - names


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def run(installed: Path, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the wheel before the checkout on its path."""
    environment = os.environ | {"PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=place, env=environment, check=False, capture_output=True, text=True
    )


def test_the_wheel_holds_every_file_of_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    missing = {str(path.relative_to(SOURCE.parent)) for path in files} - names
    assert not missing
    assert f"probmetric-{probmetric.__version__}.dist-info/licenses/LICENSE" in names
    tracked = subprocess.run(["git", "ls-files", *FILES], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert not {f"probmetric/template/{name}" for name in tracked.split()} - names


def test_the_container_file_installs_the_wheel_with_extras_it_has_and_starts_a_command_it_knows(wheel):
    text = (ROOT / "Containerfile").read_text()
    extras = set(re.search(r"\.whl\)\[([a-z,]+)\]", text)[1].split(","))
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"probmetric-{probmetric.__version__}.dist-info/METADATA").decode()
    assert extras <= set(re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE))
    assert fnmatch.fnmatch(wheel.name, re.search(r"dist/(\S+)", text)[1])
    parsed = parser().parse_args(json.loads(re.search(r"^CMD (.+)$", text, re.MULTILINE)[1]))
    assert (parsed.model, parsed.gallery, parsed.port) == ("/model", Path("/gallery"), 8000)


def test_the_library_and_the_command_work_in_an_empty_folder(installed, tmp_path):
    script = (
        "import torch, probmetric; from probmetric.losses import create_loss; "
        "loss = create_loss('proxy_anchor', num_classes=3, dim=4); "
        "assert loss(torch.randn(6, 4), torch.arange(6) % 3).isfinite(); print(probmetric.__file__)"
    )
    done = run(installed, tmp_path, "-c", script)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed)
    assert "search" in run(installed, tmp_path, "-m", "probmetric.cli", "--help").stdout
    assert "vmf" in run(installed, tmp_path, "-m", "probmetric.cli", "list", "losses").stdout


def test_init_starts_a_project(installed, tmp_path):
    done = run(installed, tmp_path, "-m", "probmetric.cli", "init")
    assert done.returncode == 0, done.stderr
    assert f"Started a project in {tmp_path}" in done.stdout
    assert (tmp_path / "workflow/rules/run.smk").is_file()
    assert (tmp_path / "profiles/default/profile.yaml").is_file()  # where Snakemake looks for it
    assert "smoke" in run(installed, tmp_path, "-m", "probmetric.cli", "experiments").stdout
    (tmp_path / "params.yaml").unlink()
    done = run(installed, tmp_path, "-m", "probmetric.cli", "init")
    assert done.returncode == 2
    assert "has no params.yaml, so it is no project, but it has profiles, Snakefile, workflow" in done.stderr


def test_what_needs_a_project_says_so(installed, tmp_path):
    done = run(installed, tmp_path, "-m", "probmetric.cli", "experiments")
    assert done.returncode == 2
    assert f"there is no params.yaml in {tmp_path}; run this command inside a project folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_release_is_named_the_same_everywhere():
    version = probmetric.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version} (" in (ROOT / "CHANGELOG.md").read_text()


def test_both_lock_files_pin_the_same_and_one_names_the_contents():
    plain, hashed = ((ROOT / name).read_text() for name in ("requirements.lock", "requirements.hashed.lock"))
    pins = re.compile(r"^([\w.-]+==[^\s\\;]+)", flags=re.MULTILINE)
    assert pins.findall(plain) == pins.findall(hashed)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", hashed)) >= len(pins.findall(plain)) > 100
