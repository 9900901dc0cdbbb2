"""The tutorials do what they say: their blocks are run in order, in a fresh checkout; with fewer epochs and seeds."""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.workflow]
TUTORIALS = Path(__file__).parents[2] / "docs/examples"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


RUNNER = """
import json, subprocess, sys

names = {"__name__": "tutorial"}
for language, block in json.load(open("blocks.json")):
    print(block, flush=True)
    if language == "sh":
        subprocess.run(["bash", "-euc", block.replace("snakemake ", "snakemake --cores 2 ")], check=True)
    else:
        exec(compile(block, "tutorial", "exec"), names)
"""


def blocks(name):
    """(language, text) of the blocks."""
    return [match.groups() for match in BLOCK.finditer((TUTORIALS / name).read_text(encoding="utf-8"))]


def run(workspace, name, epochs=2):
    """What the blocks of a tutorial printed; Python blocks of a page share their names."""
    text = (workspace.folder / "params.yaml").read_text(encoding="utf-8")
    fewer = re.sub(r"^(\s+epochs: )\d+", rf"\g<1>{epochs}", text, count=1, flags=re.MULTILINE)
    assert fewer != text
    (workspace.folder / "params.yaml").write_text(fewer, encoding="utf-8")
    less = {
        "for number in range(20)": "for number in range(10)",
        'epochs": 10': f'epochs": {epochs}',
        '"seeds": [0, 1, 2]': '"seeds": [0]',
    }
    shown = [
        (language, functools.reduce(lambda text, pair: text.replace(*pair), less.items(), block))
        for language, block in blocks(name)
    ]
    (workspace.folder / "blocks.json").write_text(json.dumps(shown), encoding="utf-8")
    return workspace.command(sys.executable, "-c", RUNNER).stdout


def test_own_images(fresh):
    import onnxruntime  # noqa: F401

    printed = run(fresh, "own-images.md")
    assert "20 classes" in printed
    assert "models:/shop/1" in printed
    assert "True a stranger" in printed
    assert "Which regions make these matches" in (fresh.folder / "reports/shop/index.html").read_text()
    assert (fresh.folder / "shop-model/README.md").read_text().count("CC-BY-4.0")


def test_own_loss_and_metric(fresh):
    printed = run(fresh, "own-loss-and-metric.md")
    assert "margin" in printed
    table = (fresh.folder / "reports/mine/table.md").read_text()
    assert "hinge" in table
    assert "Surest half" in table


def test_every_block_of_the_tutorials_is_run():
    """A block in another language, or with a trailing word, would be left out in silence."""
    elsewhere = {"pairs-and-strangers.md", "label-errors.md", "deploying.md"}  # tests/test_examples.py
    elsewhere |= {"cluster.md", "papers-table.md", "vector-databases.md"}  # test_slurm, test_miniatures, test_examples
    for page in (page for page in TUTORIALS.glob("*.md") if page.name not in elsewhere):
        fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(fences) <= {"sh", "python", ""}
        assert len(fences) == 2 * len(blocks(page.name))
