"""Pages whose Python blocks run as they stand, and commands in prose that the command line understands."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from probmetric.cli import main, parser
from probmetric.planning.console import closing_summary

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted([README, *(ROOT / "docs").rglob("*.md")])
PYTHON = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """Arguments of every `probmetric` command of a page's shell blocks."""
    text = "\n".join(SHELL.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    lines = (shlex.split(line, comments=True) for line in text.splitlines() if "<<" not in line)
    first = (line[: next((k for k, word in enumerate(line) if word in {"|", ">", "&&", ";"}), None)] for line in lines)
    return [line[1:] for line in first if line[:1] == ["probmetric"]]


def printed_blocks(page: Path) -> list[tuple[str, str]]:
    """Python blocks of a page and what stands below each; none where nothing stands below any."""
    blocks = PYTHON.findall(page.read_text(encoding="utf-8"))
    return blocks if any(expected for _, expected in blocks) else []


def test_pages_with_printed_blocks_are_found():
    assert {
        "questions.md",
        "promises.md",
        "label-errors.md",
        "deploying.md",
        "pairs-and-strangers.md",
        "vector-databases.md",
    } <= {page.name for page in PAGES if printed_blocks(page)}


def page_of(page: Path):
    """A parameter; pages that start a service are tests of processes."""
    marks = [pytest.mark.slow, pytest.mark.processes] if "subprocess" in page.read_text(encoding="utf-8") else []
    return pytest.param(page, marks=marks, id=page.name)


@pytest.mark.parametrize("page", [page_of(page) for page in PAGES if printed_blocks(page)])
def test_blocks_print_what_stands_below_them(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    for block, expected in printed_blocks(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, page.name, "exec"), names)
        assert printed.getvalue() == expected


def test_the_first_command_of_the_readme_prints_what_stands_below_it(capsys):
    first, printed = re.search(r"```sh\n(.*?)```\n```text\n(.*?)```", README.read_text("utf-8"), re.DOTALL).groups()
    command = shlex.split(first.splitlines()[0], comments=True)
    assert main(command[1:]) == 0
    lines = iter(capsys.readouterr().out.splitlines())
    assert all(line in lines for line in printed.splitlines()), "in this order, others may stand between"


def test_the_readme_shows_the_last_words_of_the_demo():
    printed = re.findall(r"```text\n(.*?)```", README.read_text("utf-8"), re.DOTALL)[2].splitlines()
    assert set(printed) <= set(closing_summary(SimpleNamespace(experiments=["demo"])).splitlines())


def test_the_first_screen_of_the_readme_says_what_it_is_for_in_forty_lines():
    screen = README.read_text(encoding="utf-8").splitlines()[:40]
    for door in ("**I have vectors**", "**I have photographs.**", "**I compare methods**"):
        assert any(line.startswith(door) for line in screen)
    assert screen[-1] == "```", "the last door is closed"


def test_the_loss_of_the_page_about_components_is_listed_as_that_page_shows_it(tmp_path):
    page = (ROOT / "docs/guide/components.md").read_text(encoding="utf-8")
    (tmp_path / "mylab.py").write_text(PYTHON.search(page)[1], encoding="utf-8")
    params = (ROOT / "params.yaml").read_text(encoding="utf-8").replace("plugins: []", "plugins: [mylab]")
    (tmp_path / "params.yaml").write_text(params, encoding="utf-8")
    command = [sys.executable, "-m", "probmetric.cli", "list", "losses", "circle"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == re.search(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_of_a_page_are_understood(page):
    for arguments in commands(page):
        parser().parse_args(arguments)
