"""A prepared dataset described for people, as a data card, and for machines, as a Croissant file.

Croissant 1.0 (Akhtar et al. 2024, mlcommons.org/croissant): files with their SHA-256, and a record set with the columns
of the manifest. What a dataset is made for is said by its source's own documentation.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from probmetric.data.digest import read_digest, verify_digest
from probmetric.data.manifest import IMAGES, MANIFEST, DataError, load_metadata, read_summary, read_table
from probmetric.data.sources import REGISTRY
from probmetric.data.version import FORMAT
from probmetric.io import write_json, write_text
from probmetric.io.folders import new_folder

FONTS = "DejaVu (Bitstream Vera), STIX (SIL OFL 1.1) and Computer Modern (AMS), as matplotlib ships them"
LICENCES = {
    "digits": "CC BY 4.0 (UCI Optical Recognition of Handwritten Digits, as scikit-learn ships it)",
    **dict.fromkeys(("glyphs", "glyphs_closed", "symbols", "letters_exact"), FONTS),
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
    "label_true": "class before labels were made wrong",
}
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "recordSet": "cr:recordSet",
    "source": "cr:source",
}


def write_card(folder: str | Path, output: str | Path, licence: str = "") -> list[Path]:
    """Write README.md, the data card, and croissant.json of a prepared dataset into the folder `output`.

    Args:
        folder: the prepared dataset; its digest is checked.
        output: where to write.
        licence: under what terms the images may be used; known for the embedded datasets.

    Raises:
        DataError: the folder is no prepared dataset, is damaged, or shares another's pixels (wrong labels).
        FileError: the output holds files that are none of a data card, or overlaps the dataset.
    """
    text, values = data_card(folder, licence), croissant(folder, licence)
    with new_folder(output, "data card", [folder]) as place:
        write_text(place / "README.md", text)
        write_json(place / "croissant.json", values)
    return [Path(output) / "README.md", Path(output) / "croissant.json"]


def data_card(folder: str | Path, licence: str = "") -> str:
    """The data card of a prepared dataset, as Markdown."""
    name, summary, digests = _facts(folder)
    splits = "\n".join(
        f"| {split} | {counts['images']} | {counts['classes']} |" for split, counts in summary["splits"].items()
    )
    columns = "\n".join(f"| `{column}` | {COLUMNS.get(column, '')} |" for column in _columns(folder))
    files = "\n".join(f"| `{file}` | `{digest}` |" for file, digest in digests.items())
    notes = "".join(f"- {note}\n" for note in summary["notes"])
    return (
        f"# {name}\n\n{_purpose(name) or summary['description']}\n\n"
        f"Protocol: {summary['protocol'].replace('_', ' ')}. Seed {summary['seed']}, options "
        f"{summary['options'] or 'none'}.\n\n"
        f"| split | images | classes |\n| --- | --- | --- |\n{splits}\n\n"
        f"{notes}\n## Columns\n\n| column | is |\n| --- | --- |\n{columns}\n\n"
        f"## Files\n\n| file | SHA-256 |\n| --- | --- |\n{files}\n\n"
        f"Licence: {_licence(name, licence)}.\n"
    )


def croissant(folder: str | Path, licence: str = "") -> dict[str, Any]:
    """The Croissant 1.0 description of a prepared dataset, as JSON-LD; files are relative to the prepared folder."""
    name, summary, digests = _facts(folder)
    kinds = {MANIFEST: "application/x-parquet", IMAGES: "application/octet-stream"}
    files = [
        {
            "@type": "cr:FileObject",
            "@id": file,
            "name": file,
            "contentUrl": file,
            "encodingFormat": kinds[file],
            "sha256": digest,
        }
        for file, digest in digests.items()
    ]
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"images/{column}",
            "name": column,
            "description": COLUMNS.get(column, column.replace("_", " ")),
            "dataType": kind,
            "source": {"fileObject": {"@id": MANIFEST}, "extract": {"column": column}},
        }
        for column, kind in _columns(folder).items()
    ]
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": summary["description"],
        "license": _licence(name, licence),
        "version": f"{FORMAT}.0.0",
        "citeAs": f"ProbMetric, dataset {name}: see CITATION.cff",
        "distribution": files,
        "recordSet": [{"@type": "cr:RecordSet", "@id": "images", "name": "images", "field": fields}],
    }


def _facts(folder: str | Path) -> tuple[str, dict[str, Any], dict[str, str]]:
    verify_digest(folder)
    digests = read_digest(folder)
    if set(digests) != {MANIFEST, IMAGES}:
        raise DataError(
            f"{folder} shares the pixels of another dataset ({', '.join(sorted(digests))}); describe that one."
        )
    return str(load_metadata(folder)["dataset"]), read_summary(folder), digests


def _columns(folder: str | Path) -> dict[str, str]:
    """Column -> its Croissant type."""
    table, _ = read_table(folder)
    kinds = {"string": "sc:Text", "double": "sc:Float", "float": "sc:Float", "bool": "sc:Boolean"}
    return {field.name: kinds.get(str(field.type), "sc:Integer") for field in table.schema}


def _purpose(name: str) -> str:
    """What the source's module says of it; empty for a dataset of the user's own name."""
    if name not in REGISTRY.names():
        return ""
    module = sys.modules[REGISTRY.get(name).__module__]
    return inspect.cleandoc(module.__doc__ or "")


def _licence(name: str, given: str) -> str:
    return given or LICENCES.get(name, "unknown: ask whoever published the images")
