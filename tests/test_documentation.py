"""The documentation builds without a warning, holds every component, and fetches nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from probmetric.cli.runs import LISTED
from probmetric.losses import list_losses
from probmetric.registry import registry_of

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Strict: mkdocs fails at a link or a cross-reference that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_tables_of_metrics_and_claims_are_their_records():
    done = subprocess.run([sys.executable, ROOT / ".ci/doc_tables.py", "--check"], check=False)
    assert done.returncode == 0, "run `make schemas`"


def test_every_component_has_its_entry(site):
    for kinds, kind in LISTED.items():
        page = (site / f"reference/components/{kinds}.html").read_text()
        assert kinds == "metrics" or all(f'id="{name}"' in page for name in registry_of(kind).names())
    assert len(list_losses()) > 15


def test_examples_that_draw_have_their_pictures(site):
    page = (site / "examples/label-errors.html").read_text()
    assert page.count("<img") >= 1
    assert (site / "examples/label-errors-0.png").stat().st_size > 5000


def test_programs_find_every_page(site):
    listed = (site / "llms.txt").read_text()
    assert "- [Questions people ask](guide/questions.md): Asked in the issues of other projects" in listed
    assert listed.count(".md): ") > 30


def test_every_command_has_its_entry(site):
    page = (site / "reference/commands.html").read_text()
    assert "--risk" in page
    assert "usage: probmetric certify" in page


def test_public_names_have_their_docstrings(site):
    page = (site / "reference/library/retrieval.html").read_text()
    assert 'id="probmetric.retrieval.retrieval_metrics"' in page
    assert 'id="probmetric.directional.fit"' in (site / "reference/library/directional.html").read_text()


def test_nothing_is_fetched_when_it_is_read(site):
    fetched = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="https?://[^"]*"')
    found = {str(page): fetched.findall(page.read_text()) for page in site.rglob("*.html")}
    assert len(found) > 25
    assert not {name: hits for name, hits in found.items() if hits}
