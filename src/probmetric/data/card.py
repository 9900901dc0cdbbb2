"""A prepared dataset described for people, as a data card, and for machines, as a Croissant file.

Croissant 1.0 (Akhtar et al. 2024, mlcommons.org/croissant): files with their SHA-256, and a record set with the columns
of the manifest. What a dataset is made for is said by its source's own documentation.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from probmetric.data.manifest import (
    FORMAT,
    IMAGES,
    MANIFEST,
    DataError,
    load_metadata,
    read_digest,
    read_summary,
    read_table,
    verify_digest,
)
from probmetric.data.sources import REGISTRY
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
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    **{name: f"cr:{name}" for name in ("citeAs", "column", "extract", "field", "fileObject", "recordSet", "source")},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
}
PARQUET = {"string": "sc:Text", "double": "sc:Float", "float": "sc:Float", "bool": "sc:Boolean"}


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
    verify_digest(folder)
    digests = read_digest(folder)
    if set(digests) != {MANIFEST, IMAGES}:
        raise DataError(
            f"{folder} shares the pixels of another dataset ({', '.join(sorted(digests))}); describe that one."
        )
    summary = read_summary(folder) | {"name": str(load_metadata(folder)["dataset"])}
    summary["licence"] = licence or LICENCES.get(summary["name"], "unknown: ask whoever published the images")
    kinds = {field.name: PARQUET.get(str(field.type), "sc:Integer") for field in read_table(folder)[0].schema}
    words, values = _words(summary, digests, kinds), _croissant(summary, digests, kinds)
    with new_folder(output, "data card", [folder]) as place:
        write_text(place / "README.md", words)
        write_json(place / "croissant.json", values)
    return [Path(output) / "README.md", Path(output) / "croissant.json"]


def _words(summary: dict[str, Any], digests: dict[str, str], kinds: dict[str, str]) -> str:
    """Return the data card, as Markdown."""
    splits = [f"| {name} | {part['images']} | {part['classes']} |\n" for name, part in summary["splits"].items()]
    columns = [f"| `{name}` | {COLUMNS.get(name, '')} |\n" for name in kinds]
    files = [f"| `{name}` | `{digest}` |\n" for name, digest in digests.items()]
    return (
        f"# {summary['name']}\n\n{_purpose(summary['name']) or summary['description']}\n\n"
        f"Protocol: {summary['protocol'].replace('_', ' ')}. Seed {summary['seed']}, options "
        f"{summary['options'] or 'none'}.\n\n"
        f"| split | images | classes |\n| --- | --- | --- |\n{''.join(splits)}\n"
        f"{''.join(f'- {note}' + chr(10) for note in summary['notes'])}\n"
        f"## Columns\n\n| column | is |\n| --- | --- |\n{''.join(columns)}\n"
        f"## Files\n\n| file | SHA-256 |\n| --- | --- |\n{''.join(files)}\n"
        f"Licence: {summary['licence']}.\n"
    )


def _croissant(summary: dict[str, Any], digests: dict[str, str], kinds: dict[str, str]) -> dict[str, Any]:
    """Return the Croissant 1.0 description, as JSON-LD; files are relative to the prepared folder."""
    encodings = {MANIFEST: "application/x-parquet", IMAGES: "application/octet-stream"}
    files = [
        {"@type": "cr:FileObject", "@id": name, "name": name, "contentUrl": name, "sha256": digest}
        | {"encodingFormat": encodings[name]}
        for name, digest in digests.items()
    ]
    fields = [
        {"@type": "cr:Field", "@id": f"images/{name}", "name": name, "dataType": kind}
        | {"description": COLUMNS.get(name, name.replace("_", " "))}
        | {"source": {"fileObject": {"@id": MANIFEST}, "extract": {"column": name}}}
        for name, kind in kinds.items()
    ]
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": summary["name"],
        "description": summary["description"],
        "license": summary["licence"],
        "version": f"{FORMAT}.0.0",
        "citeAs": f"ProbMetric, dataset {summary['name']}: see CITATION.cff",
        "distribution": files,
        "recordSet": [{"@type": "cr:RecordSet", "@id": "images", "name": "images", "field": fields}],
    }


def _purpose(name: str) -> str:
    """Return what the source's module says of the dataset; "" for one of the user's own name."""
    if name not in REGISTRY.names():
        return ""
    module = sys.modules[REGISTRY.get(name).__module__]
    return inspect.cleandoc(module.__doc__ or "")
