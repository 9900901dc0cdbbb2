"""`probmetric init`: a folder, table or file of vectors becomes a dataset entry in params.yaml and an experiment.

What is written is checked before it is written: the source lists the images, the configuration is read again.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from probmetric.config import ConfigError, Params, parse
from probmetric.data.raw import RawFiles
from probmetric.data.sources import REGISTRY as SOURCES
from probmetric.data.sources._base import Table
from probmetric.data.sources._own import SplitError
from probmetric.io import read_text, read_yaml, write_text
from probmetric.planning.declared import PARAMS, dataset_names
from probmetric.planning.experiments import EXPERIMENTS

TABLES, VECTORS = (".csv", ".tsv"), (".npy", ".npz", ".safetensors")
MANY_CLASSES = 20
MOST_TESTED = 10_000  # vectors that evaluation compares with each other by default: its time grows with the square
LARGER_VAL = (0.3, 0.5)  # shares tried where the usual one leaves each class a single validation image
NAME = re.compile("[a-z][a-z0-9_-]*")  # what rules of the workflow take for a dataset and for an experiment
ON_PIXELS = ("arcface", "contrastive", "laplace")
ON_VECTORS: dict[str, dict[str, Any]] = {
    "vectors_arcface": {
        "label": "ArcFace on vectors",
        "backbone": "vectors",
        "loss": "arcface",
        "training": {"epochs": 6, "batch_size": 512},
    },
    "vectors_laplace": {
        "label": "ArcFace on vectors + Laplace",
        "base": "vectors_arcface",
        "uncertainty": "laplace",
    },
    "vectors_pfe": {"label": "ArcFace on vectors + PFE", "base": "vectors_arcface", "uncertainty": "pfe"},
}
OF_MANY: dict[str, dict[str, Any]] = {
    "vectors_arcface": ON_VECTORS["vectors_arcface"] | {"training": {"epochs": 3, "batch_size": 256}},
    "vectors_pfe": ON_VECTORS["vectors_pfe"] | {"uncertainty": {"name": "pfe", "epochs": 3}},
}


def init(place: Path, name: str, *, split: str = "", options: dict[str, Any] | None = None) -> str:
    """Declare the data at `place` as dataset `name` and write the experiment of that name; says what was found.

    Args:
        place: a folder with one folder per class, a CSV, TSV or Parquet file, or a file of vectors.
        name: what dataset and experiment are called.
        split: by_class, by_image or by_group; by default by_class where there are many classes, else by_image.
        options: further options of the source, such as `on_error`.

    Raises:
        ConfigError: the name is none or taken, or params.yaml cannot be extended.
        DataError: there is no data, or too little.
    """
    if not NAME.fullmatch(name) or _as_yaml(name) != name:
        raise ConfigError(
            f"{name!r} cannot name a dataset; use lower-case letters, digits, '-', '_', a letter first, not null."
        )
    params: Params = parse(Params, read_yaml(PARAMS), str(PARAMS))
    experiment = EXPERIMENTS / f"{name}.yaml"
    if name in dataset_names(params) or experiment.exists():
        raise ConfigError(f"the name {name!r} is taken by a dataset or experiment; choose another one.")
    source = source_of(place)
    chosen = {key: value for key, value in (options or {}).items() if key in SOURCES.options(source)}
    table, chosen = _read(place, source, split, chosen)
    text = _with_dataset(read_text(PARAMS), name, {"source": source, "raw": str(place), **chosen})
    _check(text, name)
    write_text(PARAMS, text)
    write_text(experiment, _experiment(name, source, table))
    counts = Counter(table.columns["split"].tolist())
    classes = len(set(table.columns["label"].tolist()))
    shared = ", ".join(f"{counts[part]} {part}" for part in ("train", "val", "test"))
    return "\n".join(
        [
            f"{place}: {sum(counts.values())} of {classes} classes ({shared}), split {chosen['split']}.",
            *(f"Note: {note}." for note in table.notes),
            f"Written: dataset {name!r} in {PARAMS}, {experiment}.",
            f"Next: snakemake --config experiments={name}",
        ]
    )


def source_of(place: Path) -> str:
    """Return which source reads the data at `place`.

    Raises:
        ConfigError: none does.
    """
    kind = place.suffix.lower()
    if place.is_dir():
        return "folder"
    if place.is_file() and kind == ".parquet":
        import pyarrow.parquet as pq

        from probmetric.data.sources.embeddings import VECTORS as NAMES

        return "embeddings" if set(NAMES) & set(pq.read_schema(place).names) else "table"
    if place.is_file() and kind in (*TABLES, *VECTORS):
        return "table" if kind in TABLES else "embeddings"
    raise ConfigError(
        f"{place} is nothing to start from: name a folder with one folder per class, or a file "
        f"({', '.join((*TABLES, '.parquet', *VECTORS))})."
    )


def _read(place: Path, source: str, split: str, options: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
    """Return what the source lists, and its options with the split that suits the number of classes."""
    chosen = {"split": split or "by_image"} | options
    try:
        table = _listed(place, source, chosen)
    except SplitError:  # the data name their splits, with other classes in each
        if split:
            raise
        chosen["split"] = "by_class"
        table = _listed(place, source, chosen)
    better = _suited(table, source, chosen, fixed=bool(split))
    if better != chosen:
        table = _listed(place, source, better)
    for fraction in LARGER_VAL:
        if max(_sizes(table, "val")) > 1:
            break
        tried = better | {"val_fraction": fraction}
        larger = _listed(place, source, tried)
        if max(_sizes(larger, "val")) > 1 < min(_sizes(larger, "train")):
            return larger, tried
    return table, better


def _sizes(table: Table, split: str) -> list[int]:
    """Count the images of each class in a split, 0 for none at all; one alone in its class cannot be retrieved."""
    return list(Counter(table.columns["label"][table.columns["split"] == split].tolist()).values()) or [0]


def _suited(table: Table, source: str, options: dict[str, Any], *, fixed: bool) -> dict[str, Any]:
    """Return the options with a split that suits the classes unless it is `fixed`, and few enough tested vectors."""
    if not fixed and len(set(table.columns["label"].tolist())) >= MANY_CLASSES:
        options = options | {"split": "by_class"}
    if source == "embeddings" and _count(table, "test") > MOST_TESTED:
        tested = float(f"{MOST_TESTED / len(table.columns['split']):.1g}")
        options = {"split": options["split"], "test_fraction": tested, "val_fraction": tested / 2} | options
    return options


def _count(table: Table, split: str) -> int:
    return int((table.columns["split"] == split).sum())


def _listed(place: Path, source: str, options: dict[str, Any]) -> Table:
    files = RawFiles(source, place, place.parent)
    table: Table = SOURCES.create(source, **options).read(files, seed=0)
    return replace(table, notes=[*files.notes, *table.notes])


def _as_yaml(text: str) -> Any:
    """Return what a YAML file that holds the text says: `null`, `on` and `no` are no text there."""
    import yaml

    return yaml.safe_load(text)


def _with_dataset(text: str, name: str, values: dict[str, Any]) -> str:
    """Return the text of params.yaml with one more entry under data.on_request; comments stay."""
    import yaml

    entry = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True).strip()
    block = re.search(r"^data:[^\n]*\n(?:[ #][^\n]*\n|\n)*?  on_request:(?P<rest>[^\n]*)\n", text, re.MULTILINE)
    if block is None or "{" in block["rest"].partition("#")[0]:
        raise ConfigError(
            f"{PARAMS} has no block `on_request:` under `data:` to add to; add it by hand:\ndata:\n  on_request:\n"
            f"    {name}: {entry}"
        )
    return f"{text[: block.end()]}    {name}: {entry}\n{text[block.end() :]}"


def _check(text: str, name: str) -> None:
    """Raise `ConfigError` unless the text is a sound configuration that declares the dataset."""
    import yaml

    params: Params = parse(Params, yaml.safe_load(text), str(PARAMS))
    if name not in params.data.on_request:
        raise ConfigError(f"{PARAMS}: dataset {name!r} could not be added under data.on_request; add it by hand.")


def _experiment(name: str, source: str, table: Table) -> str:
    import yaml

    methods = list(ON_VECTORS) if source == "embeddings" else list(ON_PIXELS)
    closed = ["classification/accuracy", "calibration/ece"] if table.protocol == "closed_set" else []
    many = source == "embeddings" and len(table.columns["split"]) > 2 * MOST_TESTED
    values: dict[str, Any] = {
        "title": f"{name}: which method, and how sure",
        "description": f"Written by `probmetric init`: {table.description}.{_of_many(table) if many else ''}",
        "runs": [{"datasets": [name], "methods": methods, "seeds": [0] if many else [0, 1, 2]}],
    }
    if source == "embeddings":
        values["methods"] = ON_VECTORS | (OF_MANY if many else {})
    values["metrics"] = ["retrieval/recall_at_1", "retrieval/map_at_r", *closed, "sparsification/error_auroc"]
    values["figures"] = ["metric_per_method", "learning_curves", "sparsification"]
    head = "# yaml-language-server: $schema=../schemas/experiment.schema.json\n"
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)


def _of_many(table: Table) -> str:
    """Return what the report of very many vectors leaves out, and how to have it."""
    tested, count = _count(table, "test"), len(table.columns["split"])
    return (
        f" To be quick, {tested:,} of {count:,} vectors are tested, with one seed, which says nothing about the spread "
        "over seeds, and heads are trained for three epochs; a larger test_fraction in params.yaml and more seeds and "
        "epochs in the experiment say more."
    )
