"""Make a dataset entry in params.yaml and an experiment from a folder, table or file of vectors: `probmetric init`.

Everything is checked before it is written.

In an empty folder `init` starts a project with the workflow's own files, from the wheel or the checkout. The project
has no dvc.yaml, whose stages name files of the checkout, and prepares its data without DVC. Its conda file names this
version of the package instead of the checkout and its locked requirements.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import probmetric
from probmetric.config import ConfigError, Params, parse
from probmetric.data.manifest import listed_problems, refusing
from probmetric.data.raw import RawFiles
from probmetric.data.sources import REGISTRY as SOURCES
from probmetric.data.sources._base import Table
from probmetric.data.sources._files import ImageFiles
from probmetric.data.sources._own import SplitError, parted_groups
from probmetric.data.sources.table import columns_of
from probmetric.io import alone, read_text, read_yaml, write_text
from probmetric.planning.declared import PARAMS, dataset_names
from probmetric.planning.experiments import EXPERIMENTS
from probmetric.planning.own_methods import (
    DECODED,
    NETWORK,
    NO_NETWORK,
    PIXELS,
    Extent,
    Measured,
    Row,
    measured,
    named,
    of_photos,
    of_vectors,
)

TABLES, VECTORS = (".csv", ".tsv"), (".npy", ".npz", ".safetensors")
MANY_CLASSES = 20
MOST_OPENED = 10_000  # images whose first and last bytes are checked; this takes some seconds
MOST_TESTED = 10_000  # vectors that evaluation compares with each other by default; its time grows with the square
LARGER_VAL = {0.3: (10, 50), 0.5: (5, 2)}  # shares tried if fewer classes, or images of known classes, validate
NAME = re.compile("[a-z][a-z0-9_-]*")  # names that rules of the workflow accept for a dataset and for an experiment
FEW_VALIDATING = 5  # classes held out


@dataclass(frozen=True)
class Wish:
    """Arguments that a user gives to `init`.

    Attributes:
        place: a folder with one folder per class, a CSV, TSV or Parquet file, or a file of vectors.
        name: name of the dataset and the experiment.
        split: by_class, by_image or by_group; "": by_class with many classes, else by_image.
        options: further options of the source, such as `on_error`; "" leaves one out.
        extent: how many methods and seeds.
        scratch: whether a small net is trained from scratch, too.
        network: tag in timm of the pretrained network.
    """

    place: Path
    name: str
    split: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    extent: Extent = "usual"
    scratch: bool = False
    network: str = NETWORK


def init(wish: Wish) -> str:
    """Declare the user's data as a dataset, write the experiment of that name, and return lines about it.

    If there is no project, one is started, after everything else was checked.

    Raises:
        ConfigError: the name is not allowed or taken, this folder belongs to the photographs, params.yaml cannot be
            extended, or weights are missing.
        DataError: there is no data, or too little.
    """
    name = wish.name
    if not NAME.fullmatch(name) or yaml.safe_load(name) != name:  # YAML does not read null, on and no as text
        raise ConfigError(
            f"{name!r} cannot name a dataset; use lower-case letters, digits, '-' and '_', with a letter first, and "
            "not null, on or the like. Choose another name with --name."
        )
    source = source_of(wish.place)
    _check_outside(wish.place, name)
    with alone(PARAMS, "declares data here"):
        return _declare(wish, source)


def _declare(wish: Wish, source: str) -> str:
    """Do the work of `init`, while no other process does it."""
    name, place, project = wish.name, wish.place, origin(Path())
    params: Params = parse(Params, read_yaml(project / PARAMS), str(PARAMS))
    experiment = EXPERIMENTS / f"{name}.yaml"
    if name in dataset_names(params) or (project / experiment).exists():
        raise ConfigError(f"the name {name!r} is taken by a dataset or experiment; choose another one with --name.")
    options = {key: value for key, value in wish.options.items() if value}
    options |= _folder_of_images(place, source, options)
    table, chosen = _read(place, source, wish.split, options)
    if source == "embeddings" and not _count(table, "train"):
        table, chosen = _read(place, source, wish.split, options | {"split_column": ""})
        table.notes.append("the splits of `certify` are not used here: all rows are split anew")
    if not _count(table, "train"):
        raise ConfigError(f"{place} has test images only; add images of other splits, for training and validation.")
    table.notes.extend(_damaged(table))
    text = _with_dataset(read_text(project / PARAMS), name, {"source": source, "raw": str(place), **chosen})
    _check(text, name, place)
    speed = None if source == "embeddings" else measured(wish.network)
    rows = (
        of_vectors(extent=wish.extent)
        if speed is None
        else of_photos(
            wish.network,
            speed.last,
            images=len(table.columns["split"]),
            training=_count(table, "train"),
            extent=wish.extent,
            scratch=wish.scratch,
        )
    )
    if max(_sizes(table, "val")) < 2:  # no images could choose an epoch
        rows = {method: row for method, row in rows.items() if row.settings.get("training", {}).get("epochs") == 0}
    rows = named(rows, name)
    many = source == "embeddings" and len(table.columns["split"]) > 2 * MOST_TESTED
    if many:
        rows = {method: replace(row, seeds=1) for method, row in rows.items()}
    started = start(Path())
    write_text(experiment, _experiment(name, table, rows, many=many))
    write_text(PARAMS.resolve(), text)  # last, since this file reserves the name
    return "\n".join(
        [
            *started,
            *_data_lines(place, table, chosen["split"], "images" if speed else "vectors"),
            *_plan_lines(wish, table, rows, speed),
            f"Written: dataset {name!r} in {PARAMS}, {experiment}.",
            f"Next: snakemake --config experiments={name}",
            f"Then: probmetric recommend {name}    which of them to deploy, chosen on the validation images",
        ]
    )


def _damaged(table: Table) -> list[str]:
    """Return a note about damaged images that will be left out, as far as a quick check finds them.

    Raises:
        DataError: there are damaged images, and they are not to be left out.
    """
    problems = table.image.damage(MOST_OPENED) if isinstance(table.image, ImageFiles) else []
    if problems and table.on_error == "raise":
        raise listed_problems(f"{len(problems)} image(s) cannot be read; --on-error skip leaves them out:", problems)
    return (
        [f"{len(problems)} image(s) will be left out, since they cannot be read: {problems[0].rstrip('.')}"]
        if problems
        else []
    )


def _check_outside(place: Path, name: str) -> None:
    """Raise `ConfigError` if the project would be inside the folder of photographs."""
    photos, here = place.resolve(), Path.cwd()
    if photos.is_dir() and here.is_relative_to(photos):
        beside = shlex.quote(str(photos.parent / f"{name}-project"))
        raise ConfigError(
            f"{here} holds the photographs, and nothing is written among them. Start the project beside them:\n"
            f"  mkdir {beside} && cd {beside} && probmetric init {shlex.quote(str(photos))} --name {name}"
        )


def name_of(place: Path) -> str:
    """Return the name of a folder or file in the letters that a dataset's name may have: My Birds.csv -> my-birds."""
    return re.sub("[^a-z0-9_]+", "-", place.resolve().stem.lower()).strip("-")


def _folder_of_images(place: Path, source: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the option `images` for a table with absolute paths to another folder."""
    if source != "table":
        return {}
    paths = columns_of(place).get(options.get("path_column", "path"))
    if paths is None or not all(Path(str(path)).is_absolute() for path in paths.tolist()):
        return {}
    folder = Path(os.path.commonpath([Path(str(path)).parent for path in paths.tolist()]))
    return {"images": str(folder)} if folder.is_dir() and not folder.is_relative_to(place.parent.resolve()) else {}


def _data_lines(place: Path, table: Table, split: str, rows: str) -> list[str]:
    """Return lines about the number of `rows` ("images"), their splits, and warnings."""
    labels, splits = table.columns["label"], table.columns["split"]
    counts, classes = Counter(splits.tolist()), len(np.unique(labels))
    shared = ", ".join(f"{counts[part]} {part}" for part in ("train", "val", "test"))
    lines = [f"{place}: {sum(counts.values())} {rows} of {classes} classes ({shared}), split {split}."]
    lines += [f"Note: {note}." for note in table.notes]
    trained, validating = (len(np.unique(labels[splits == part])) for part in ("train", "val"))
    if 0 < validating <= FEW_VALIDATING and split == "by_class":
        lines.append(
            f"Warning: only {validating} classes are for validation, so the choice between methods is rough. Add "
            f"images of more classes, or raise val_fraction in {PARAMS}."
        )
    if 0 < trained < classes:
        lines.append(
            f"Warning: training sees only {trained} of {classes} classes; the others are for validation and test. The "
            "model to deploy can be trained on the validation classes too (refit): `probmetric recommend` says how."
        )
    return lines


def _plan_lines(wish: Wish, table: Table, rows: Mapping[str, Row], speed: Measured | None) -> list[str]:
    """Return lines about the planned runs, and their time on this machine."""
    splits = table.columns["split"]
    images, training, cores = len(splits), int((splits == "train").sum()), os.cpu_count() or 1
    seen = f"{wish.network}, published weights, {PIXELS} x {PIXELS} pixels" if speed else "vectors, no network"
    seconds = {name: (speed or NO_NETWORK).seconds(row, images=images, training=training) for name, row in rows.items()}
    longest = max(seconds[name] / row.seeds for name, row in rows.items())  # a run uses one core
    total = max(sum(seconds.values()) / cores, longest) + (images / DECODED / cores if speed else 0.0)
    runs = sum(row.seeds for row in rows.values())
    lines = [f"Plan ({seen}): {runs} runs, about {_duration(total)} on {cores} cores as busy as now."]
    width = max(map(len, rows))
    for name, row in rows.items():
        times = "1 run" if row.seeds == 1 else f"{row.seeds} runs"
        lines.append(f"  {name:<{width}} {times:<7} {_duration(seconds[name]):>7}  {row.what}")
    return lines


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def source_of(place: Path) -> str:
    """Return the name of the source that reads the data at `place`.

    Raises:
        ConfigError: no source does.
        DataError: a Parquet file cannot be read.
    """
    kind = place.suffix.lower()
    if place.is_dir():
        return "folder"
    if place.is_file() and kind == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        from probmetric.data.sources.table import VECTORS as NAMES

        with refusing(f"{place} cannot be read", "write it again", OSError, pa.ArrowException):
            columns = pq.read_schema(place)
        return (
            "embeddings" if any(each.name in NAMES and pa.types.is_nested(each.type) for each in columns) else "table"
        )
    if place.is_file() and kind in (*TABLES, *VECTORS):
        return "table" if kind in TABLES else "embeddings"
    raise ConfigError(
        f"{place} is no data to start from; name a folder with one folder per class, or a file "
        f"({', '.join((*TABLES, '.parquet', *VECTORS))})."
    )


def _read(place: Path, source: str, split: str, options: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
    """Return the table of the source, and its options with the split that suits the number of classes."""
    groups = {"group": "folder"} if source == "folder" and split == "by_group" else {}
    chosen = {"split": split or "by_image"} | groups | options
    try:
        table = _listed(place, source, chosen)
    except SplitError:  # the data name their splits, with other classes in each
        if split:
            raise
        chosen["split"] = "by_class"
        table = _listed(place, source, chosen)
    better = _suited(table, source, chosen, fixed=bool(split))
    if better != chosen:
        try:
            table = _listed(place, source, better)
        except SplitError:  # the data name their splits, which stay
            better = chosen
    with contextlib.suppress(SplitError):  # the data name their validation images
        for fraction, enough in LARGER_VAL.items() if "val_fraction" not in better else ():
            if _can_choose(table, *enough):
                break
            tried = better | {"val_fraction": fraction}
            larger = _listed(place, source, tried)
            changed = _count(larger, "val") > _count(table, "val")
            if changed and max(_sizes(larger, "val")) > 1 < min(_sizes(larger, "train")):
                table, better = larger, tried
    parted = parted_groups(table.columns) if "role" not in table.columns else []
    if parted and better["split"] == "by_image":
        names = ", ".join(parted[:3])
        note = f"{len(parted)} group(s) are in several splits ({names}): `--split by_group` keeps them whole"
        table = replace(table, notes=[*table.notes, note])
    return table, better


def _can_choose(table: Table, classes: int, images: int) -> bool:
    """Say whether the validation images can choose between methods: they have enough classes, or known classes."""
    sizes = _sizes(table, "val")
    return max(sizes) > 1 and (sum(sizes) >= images if table.protocol == "closed_set" else len(sizes) >= classes)


def _sizes(table: Table, split: str) -> list[int]:
    """Count the images of each class in a split (0 for an empty split); an image alone in its class is never found."""
    return list(Counter(table.columns["label"][table.columns["split"] == split].tolist()).values()) or [0]


def _suited(table: Table, source: str, options: dict[str, Any], *, fixed: bool) -> dict[str, Any]:
    """Return the options with a split that suits the classes, unless it is `fixed`, and not too many test vectors."""
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


def _with_dataset(text: str, name: str, values: dict[str, Any]) -> str:
    """Return the text of params.yaml with a new entry under data.on_request; comments stay."""
    entry = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True).strip()
    block = re.search(r"^data:[^\n]*\n(?:[ #][^\n]*\n|\n)*?  on_request:(?P<rest>[^\n]*)\n", text, re.MULTILINE)
    if block is None or "{" in block["rest"].partition("#")[0]:
        raise ConfigError(
            f"{PARAMS} has no block `on_request:` under `data:` to add to; add it by hand:\ndata:\n  on_request:\n"
            f"    {name}: {entry}"
        )
    first = re.match(r"(?:\s*#[^\n]*\n|\n)*( +)\S", text[block.end() :])
    indent = first[1] if first and len(first[1]) > len("  ") else "    "
    return f"{text[: block.end()]}{indent}{name}: {entry}\n{text[block.end() :]}"


def _check(text: str, name: str, place: Path) -> None:
    """Raise `ConfigError` unless the text is a valid configuration that declares the dataset at `place`."""
    params: Params = parse(Params, yaml.safe_load(text), str(PARAMS))
    if name not in params.data.on_request:
        raise ConfigError(f"{PARAMS}: dataset {name!r} could not be added under data.on_request; add it by hand.")
    if (read := params.data.raw_of(params.data.on_request[name])) != place:
        raise ConfigError(f"{place} would be read as {read}, since {PARAMS} expands ~ and $NAME; rename it.")


def _experiment(name: str, table: Table, rows: Mapping[str, Row], *, many: bool) -> str:
    closed = ["classification/accuracy", "calibration/ece"] if table.protocol == "closed_set" else []
    trusted = ["p_right/coverage_at_risk_5", "p_right/ece"]
    by_seeds: dict[int, list[str]] = {}
    for method, row in rows.items():
        by_seeds.setdefault(row.seeds, []).append(method)
    values: dict[str, Any] = {
        "title": f"{name}: which method, and how sure",
        "description": f"Written by `probmetric init`: {table.description}.{_of_many(table) if many else ''}",
        "runs": [
            {"datasets": [name], "methods": methods, "seeds": list(range(seeds))} for seeds, methods in by_seeds.items()
        ],
        "methods": {method: copy.deepcopy(row.settings) for method, row in rows.items()},
        "metrics": ["retrieval/recall_at_1", "retrieval/map_at_r", *closed, *trusted],
        "figures": ["metric_per_method", "learning_curves", "sparsification"],
    }
    head = "# yaml-language-server: $schema=../schemas/experiment.schema.json\n"
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)


def _of_many(table: Table) -> str:
    """Return a line about what the report leaves out for very many vectors, and how to get it."""
    tested, count = _count(table, "test"), len(table.columns["split"])
    return (
        f" To be quick, {tested:,} of {count:,} vectors are tested, with one seed, so the spread over seeds is "
        "unknown. For more, raise test_fraction in params.yaml and the number of seeds in the experiment."
    )


FILES = ("Snakefile", ".gitignore", "workflow", "params.yaml")  # written last, to mark the project as complete
LINK, LINKED = "profiles", "workflow/profiles"  # where Snakemake looks for the default profile
CONDA = Path("workflow/envs/probmetric.yaml")
CHECKOUT = "      - -r ../../requirements.lock\n      - -e ../..\n"
PACKAGE = Path(probmetric.__file__).parent


def origin(folder: Path) -> Path:
    """Return the folder whose params.yaml and workflow apply in `folder`: `folder` itself, or a project's template.

    Raises:
        ConfigError: `folder` is no project, and none can be started, because files of those names are there, or this
            installation has no workflow to copy.
    """
    if (folder / PARAMS).exists():
        return folder
    taken = [name for name in (LINK, *FILES) if os.path.lexists(folder / name) and name != ".gitignore"]
    if taken:
        raise ConfigError(
            f"{folder.resolve()} has no {PARAMS}, so it is no project, but it has {', '.join(taken)}, which a new "
            "project would overwrite. Run this in another folder, or move them away."
        )
    return _source()


def start(folder: Path) -> list[str]:
    """Write the workflow into `folder` and return a line about it; [] if `folder` is a project already.

    Raises:
        ConfigError: as for `origin`.
    """
    source = origin(folder)
    if source == folder:
        return []
    (folder / LINK).symlink_to(LINKED)
    written = [name for name in FILES if not (folder / name).exists()]
    for name in written:
        place = source / name
        if place.is_dir():
            shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(place, folder / name)
    conda, installed = read_text(folder / CONDA), f"      - probmetric[all]=={probmetric.__version__}\n"
    write_text(folder / CONDA, conda.replace(CHECKOUT, installed))
    return [f"Started a project in {folder.resolve()}: {', '.join([*written, LINK])}."]


def _source() -> Path:
    places = (PACKAGE / "template", PACKAGE.parents[1])
    source = next((place for place in places if all((place / name).exists() for name in FILES)), None)
    if source is None:
        raise ConfigError(f"the installation in {PACKAGE} holds no workflow to start from; install the wheel.")
    return source
