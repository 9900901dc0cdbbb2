"""Make the thumbnails of all figures in docs/guide/gallery.md, of a report that has drawn them.

    snakemake --config experiments=gallery
    python examples/figure_gallery.py reports/gallery

Where the report has nothing to show as a figure, the page says why.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

from probmetric.io import read_json, write_text
from probmetric.reporting.figures import STANDING, list_figures

PAGE, THUMBNAILS = Path("docs/guide/gallery.md"), Path("docs/images/figures")
WIDTH, TALLEST, QUALITY = 420, 420, 60
HEAD = """# All figures

Thumbnails of a few runs of five epochs on letters and digits; nothing can be learnt about the methods.
`snakemake --config experiments=gallery` and `python examples/figure_gallery.py reports/gallery` make them.
What each shows, and in which paper it stands: [figures](figures.md).

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    print(gallery(parser.parse_args().report))
