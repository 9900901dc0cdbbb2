"""The captions of Snakemake's report are valid templates and valid reStructuredText."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import jinja2
import pytest
from docutils.core import publish_parts

from probmetric.reporting.figures import list_figures

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "workflow" / "report"


def render(name: str, **wildcards: str) -> str:
    template = jinja2.Template((FOLDER / name).read_text(encoding="utf-8"), undefined=jinja2.StrictUndefined)
    text = template.render(snakemake=SimpleNamespace(wildcards=SimpleNamespace(**wildcards)))
    return publish_parts(text, writer="html5", settings_overrides={"halt_level": 2, "report_level": 2})["body"]


@pytest.mark.parametrize("name", ["table.rst", "page.rst"])
def test_captions_name_their_experiment(name):
    assert "<strong>pfml/table2</strong>" in render(name, experiment="pfml/table2")


def test_the_caption_of_a_figure_names_it():
    """What is seen there is said once, by the figure: captions that were written twice told two stories."""
    text = render("figure.rst", experiment="demo", figure="noise_robustness")
    assert "<strong>demo</strong>, figure noise robustness" in text


def test_the_gallery_of_the_docs_shows_every_figure_small():
    page = ROOT / "docs/guide/gallery.md"
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"\| `(\w+)`", text) == sorted(list_figures())
    shown = re.findall(r"\((\.\./images/figures/\w+\.webp)\)", text)
    assert len(shown) == len(list_figures())
    assert max((page.parent / path).stat().st_size for path in shown) < 40_000
