"""Write the data card of a prepared dataset. What the dataset is for is taken from the docstrings of its source."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from probmetric.data.manifest import (
    IMAGES,
    MANIFEST,
    DataError,
    read_digest,
    read_summary,
    read_table,
    verify_digest,
)
from probmetric.data.sources import REGISTRY
from probmetric.io import write_text
from probmetric.io.folders import new_folder

DIGITS = "CC BY 4.0 (UCI Optical Recognition of Handwritten Digits, as scikit-learn ships it)"
FONTS = "DejaVu (Bitstream Vera), STIX (SIL OFL 1.1) and Computer Modern (AMS), as matplotlib ships them"
LICENCES = {
    **dict.fromkeys(("digits", "digits_open"), DIGITS),
    **dict.fromkeys(("glyphs", "glyphs_closed", "symbols", "other_scripts", "letters_exact"), FONTS),
}
COLUMNS = {
    "index": "row number",
    "path": "name of the image in its source",
    "label": "class, from 0",
    "class_name": "name of the class",
    "split": "train, val or test",
    "sha256": "SHA-256 of the pixels",
    "offset": "first byte of the image in images.bin",
    "height": "pixels",
    "width": "pixels",
    "channels": "1 grey, 3 RGB; bytes are ordered row, column, channel",
    "character": "the letter",
    "font": "face it is drawn in",
    "warp": "strength of the warp, 0 to 1",
    "blur": "strength of the blur, 0 to 1",
    "occlusion": "strength of the occlusion, 0 to 1",
    "distortion": "root mean square of the strengths",
    "noise": "strength of the noise: 0 to 1, of letters_exact the standard deviation in units of ink",
    "true_probability": "P(its class | image), exact, among the classes of its split",
    "bayes_probability": "largest P(class | image), exact",
    "entropy": "entropy of P(class | image), in nats, exact",
    "clean_label": "class before labels were made wrong",
}


def write_card(folder: str | Path, output: str | Path, licence: str = "") -> Path:
    """Write the data card of a prepared dataset, README.md, into the folder `output`; return its path.

    Args:
        folder: the prepared dataset; its digest is checked.
        output: where to write.
        licence: terms under which the images may be used; already known for the embedded datasets.

    Raises:
        DataError: the folder is no prepared dataset, is damaged, or uses the pixels of another one (label noise).
        FileError: the output holds files that do not belong to a data card, or overlaps the dataset.
    """
    verify_digest(folder)
    digests = read_digest(folder)
    if set(digests) != {MANIFEST, IMAGES}:
        raise DataError(
            f"{folder} shares the pixels of another dataset ({', '.join(sorted(digests))}); describe that one."
        )
    table, metadata = read_table(folder)
    source = str(metadata["dataset"])
    summary = read_summary(folder) | {"name": Path(folder).resolve().name, "purpose": _purpose(source)}
    summary["licence"] = licence or LICENCES.get(source, "unknown: ask whoever published the images")
    with new_folder(output, "data card", [folder]) as place:
        write_text(place / "README.md", _words(summary, digests, table.column_names))
    return Path(output) / "README.md"


def _words(summary: dict[str, Any], digests: dict[str, str], names: list[str]) -> str:
    """Return the data card, as Markdown."""
    splits = [f"| {name} | {part['images']} | {part['classes']} |\n" for name, part in summary["splits"].items()]
    columns = [f"| `{name}` | {COLUMNS.get(name, '')} |\n" for name in names]
    files = [f"| `{name}` | `{digest}` |\n" for name, digest in digests.items()]
    return (
        f"# {summary['name']}\n\n{summary['purpose'] or summary['description']}\n\n"
        f"Protocol: {summary['protocol'].replace('_', ' ')}. Seed {summary['seed']}, options "
        f"{summary['options'] or 'none'}.\n\n"
        f"| split | images | classes |\n| --- | --- | --- |\n{''.join(splits)}\n"
        f"{''.join(f'- {note}' + chr(10) for note in summary['notes'])}\n"
        f"## Columns\n\n| column | is |\n| --- | --- |\n{''.join(columns)}\n"
        f"## Files\n\n| file | SHA-256 |\n| --- | --- |\n{''.join(files)}\n"
        f"Licence: {summary['licence']}.\n"
    )


def _purpose(name: str) -> str:
    """Return what source `name` and its module say of the dataset; "" for the user's own data or a missing source."""
    if name not in REGISTRY.names() or REGISTRY.constant(name, "needs_raw", False):
        return ""
    source = REGISTRY.get(name)
    return "\n\n".join(inspect.cleandoc(part.__doc__ or "") for part in (source, sys.modules[source.__module__]))
