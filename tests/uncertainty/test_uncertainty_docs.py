"""The code in docs/reference/uncertainty.md runs, top to bottom, in one session."""

import re
from pathlib import Path

import torch

DOCUMENT = Path(__file__).parents[2] / "docs/reference/uncertainty.md"


def test_code_blocks_run():
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in blocks:
            exec(compile(block, str(DOCUMENT), "exec"), names)
    assert names["record"].mean.shape == (30, 16)


def test_every_method_is_in_the_table():
    from probmetric.uncertainty import list_uncertainties

    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in list_uncertainties())
