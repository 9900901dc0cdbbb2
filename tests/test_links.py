"""Every relative link in prose names a file that lies in Git, and a heading that is there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(<?([^)\s>]+)>?\)")


def kept() -> set[str]:
    """Files and folders of the repository: committed or about to be, never what Git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    files = {name for name in names if (ROOT / name).exists()}
    return files | {str(parent) for name in files for parent in Path(name).parents}


KEPT = kept()
PAGES = sorted(name for name in KEPT if name.endswith(".md"))


def dead_links(page: str, kept: set[str]) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [link for link in LINK.findall(text) if ":" not in link and not resolves(page, link, kept)]


def resolves(page: str, link: str, kept: set[str]) -> bool:
    path, _, anchor = link.partition("#")
    found = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
    if not found.is_relative_to(ROOT) or str(found.relative_to(ROOT)) not in kept:
        return False
    return not anchor or anchor in anchors(found)


def anchors(page: Path) -> set[str]:
    """Names a Markdown page's headings have as link targets."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve_in_a_fresh_clone(page):
    assert dead_links(page, KEPT) == []


def test_a_link_to_what_git_does_not_keep_is_dead():
    kept = KEPT - {"reports/theory/README.md"}
    assert "../../reports/theory/README.md" in dead_links("docs/guide/figures.md", kept)


def test_prose_is_looked_at():
    assert {"README.md", "docs/guide/figures.md", "reports/theory/README.md"} <= set(PAGES)
    assert len(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))) > 10


def test_what_is_named_for_mutants_is_there():
    """A module that moved would be left out in silence."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    assert set(named["source_paths"] + named["pytest_add_cli_args_test_selection"] + named["also_copy"]) <= KEPT


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/guide/")])
def test_guide_pages_are_short(page):
    prose = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= 900


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith(("docs/guide/", "docs/examples/"))])
def test_guide_pages_and_examples_show_what_comes_out(page):
    """A picture, a block that draws one for the site, or what is printed."""
    shown = r"^!\[|^```(text|json)$|\| !\[|^import matplotlib"
    assert re.search(shown, (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
