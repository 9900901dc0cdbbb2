"""Make the thumbnails of all figures in docs/guide/gallery.md, of a report that has drawn them.

    snakemake --config experiments=gallery
    python examples/figure_gallery.py reports/gallery
    python examples/figure_gallery.py reports/mine metric_per_method

With names it makes pictures of these figures alone, docs/images/<report>-<figure>.webp. Where the report has nothing to
show as a figure, the page says why.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

from probmetric.io import read_json, write_text
from probmetric.reporting.figures import STANDING, list_figures

PAGE, THUMBNAILS = Path("docs/guide/gallery.md"), Path("docs/images/figures")
WIDTH, WIDEST, TALLEST, QUALITY = 420, 1000, 420, 60
HEAD = """# All figures

This page shows what each figure looks like. [Figures](figures.md) says what it shows and from which paper it comes.
The thumbnails come from a few runs of five epochs on letters and digits, so they do not compare methods.
`snakemake --config experiments=gallery` and `python examples/figure_gallery.py reports/gallery` make them.

| figure | name under `figures:` |
| --- | --- |
"""


def gallery(report: Path) -> Path:
    """Write a thumbnail of every figure of the `report` folder and the page that shows them; return the page."""
    lines = []
    THUMBNAILS.mkdir(parents=True, exist_ok=True)
    for name in sorted(list_figures()):
        words = read_json(report / "figures" / f"{name}.json")
        if words["empty"]:
            lines.append(f"| no thumbnail: {words['empty']} | `{name}` |")
            continue
        image = Image.open(report / "figures" / f"{name}.png").convert("RGB")
        image.thumbnail((WIDTH, 10 * WIDTH))
        image.crop((0, 0, image.width, min(image.height, TALLEST))).save(THUMBNAILS / f"{name}.webp", quality=QUALITY)
        standing = ", in every report" if name in STANDING else ""
        lines.append(f"| ![{words['title']}](../images/figures/{name}.webp) | `{name}`{standing} |")
    write_text(PAGE, HEAD + "\n".join(lines) + "\n")
    return PAGE


def picture(report: Path, name: str) -> Path:
    """Write the picture of one figure of the `report` folder; return its path."""
    image = Image.open(report / "figures" / f"{name}.png").convert("RGB")
    image.thumbnail((WIDEST, WIDEST))
    file = THUMBNAILS.parent / f"{report.name}-{name}.webp"
    image.save(file, quality=QUALITY)
    return file


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("figures", nargs="*")
    options = parser.parse_args()
    print(*[picture(options.report, name) for name in options.figures] or [gallery(options.report)], sep="\n")
