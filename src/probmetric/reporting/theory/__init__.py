"""The papers' figures that need no training: drawn from the library's own distributions and losses.

One file per figure, found by its name; a figure is a function `draw() -> Drawing`. `write_theory(folder)` writes each
as .png, .pdf and .json, README.md, which shows them with their captions, and digests, by which `probmetric publish`
finds damage. The same code gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path

from probmetric.io import atomic_path, read_json, write_text
from probmetric.io.folders import claim_folder
from probmetric.registry import Registry
from probmetric.reporting.figures import save
from probmetric.reporting.record import sign

REGISTRY = Registry("theory figure", "probmetric.reporting.theory")
register, list_theory = REGISTRY.register, REGISTRY.names

_HEAD = """# Figures without training

The figures of the papers that need no data, computed by this library: `probmetric theory` writes this page.
"""


def write_theory(folder: str | Path) -> list[Path]:
    """Draw every theory figure into `folder`, and the page that shows them. Returns the paths written."""
    folder = Path(folder)
    claim_folder(folder, "theory figures")
    paths = []
    for name in list_theory():
        image, *others = save(name, folder, REGISTRY.get(name))
        _shrink(image)
        paths += [image, *others]
    page = folder / "README.md"
    write_text(page, "\n".join([_HEAD, *(_section(folder, name) for name in list_theory())]))
    sign(folder)
    return [*paths, page]


def _shrink(image: Path) -> None:
    """Reduce a PNG to a palette of 256 colours, a third of its size: these files are kept in Git."""
    from PIL import Image

    with Image.open(image) as full:
        small = full.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    with atomic_path(image) as temporary:
        small.save(temporary, format="png", optimize=True)


def _section(folder: Path, name: str) -> str:
    words = read_json(folder / f"{name}.json", "draw the figures again", dict[str, str])
    return f"## {words['title']}\n\n![{words['alt']}]({name}.png)\n\n{words['caption']} ([PDF]({name}.pdf))\n"
