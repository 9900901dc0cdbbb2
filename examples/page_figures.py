"""Make the pictures of a page of the documentation: what its Python blocks draw, each to docs/images/<page>-<k>.webp.

    python examples/page_figures.py docs/examples/deploying.md

The blocks run in an empty folder, in their order, as the tests run them.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image

BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
IMAGES = Path("docs/images").resolve()
DPI, QUALITY = 110, 80


def draw(page: Path) -> list[Path]:
    """Run the blocks of a page; return the pictures written."""
    names: dict = {"__name__": "page"}
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for block in blocks:
            exec(compile(block, page.name, "exec"), names)
    written = []
    for number in plt.get_fignums():
        file, drawn = IMAGES / f"{page.stem}-{number}.webp", io.BytesIO()
        plt.figure(number).savefig(drawn, dpi=DPI)
        Image.open(drawn).convert("RGB").save(file, quality=QUALITY)
        written.append(file)
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    print(*draw(parser.parse_args().page.resolve()), sep="\n")
