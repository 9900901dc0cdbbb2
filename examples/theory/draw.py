"""Draw the papers' figures that need no training: `python examples/theory/draw.py [FOLDER]`.

Each script of this folder is a function `draw() -> Drawing` of the library's own distributions and losses. Into the
folder, `reports/theory` by default, go each figure as .png, .pdf and .json, README.md, which shows them with their
captions, and digests, by which `probmetric publish` finds damage. The same code gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import bessel_ratio
import distance_surfaces
import normaliser_approximations
import potential_fields
from PIL import Image

from probmetric.io import atomic_path, read_json, write_text
from probmetric.io.folders import claim_folder
from probmetric.reporting.experiment import sign
from probmetric.reporting.figures import save

FIGURES = {
    module.__name__: module.draw
    for module in (bessel_ratio, distance_surfaces, normaliser_approximations, potential_fields)
}
_HEAD = """# Figures without training

The figures of the papers that need no data, computed by this library; `python examples/theory/draw.py` writes this
page.
"""


def write(folder: Path) -> list[Path]:
    """Draw every figure into `folder`, and the page that shows them; return the paths written."""
    claim_folder(folder, "theory figures")
    paths, sections = [], [_HEAD]
    for name, draw in FIGURES.items():
        image, *others = save(name, folder, draw)
        _shrink(image)
        paths += [image, *others]
        words = read_json(folder / f"{name}.json", "draw the figures again", dict[str, str])
        picture = f"![{words['alt']}]({name}.png)"
        sections.append(f"## {words['title']}\n\n{picture}\n\n{words['caption']} ([PDF]({name}.pdf))\n")
    page = folder / "README.md"
    write_text(page, "\n".join(sections))
    sign(folder)
    return [*paths, page]


def _shrink(image: Path) -> None:
    """Reduce a PNG to a palette of 256 colours, a third of its size: these files are kept in Git."""
    with Image.open(image) as full:
        small = full.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    with atomic_path(image) as temporary:
        small.save(temporary, format="png", optimize=True)


if __name__ == "__main__":
    for path in write(Path(sys.argv[1] if len(sys.argv) > 1 else "reports/theory")):
        print(path)
