"""Run the commands for data: prepared datasets, their checks and cards, your own images as a dataset."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from probmetric import data
from probmetric.cli.project import params, prepared_folder
from probmetric.cli.vectors import check_unused
from probmetric.data.card import write_card
from probmetric.data.manifest import read_summary
from probmetric.data.sources import REGISTRY as SOURCES
from probmetric.data.status import format_status
from probmetric.errors import harmless
from probmetric.io import FileError, write_text
from probmetric.io.folders import check_new_file
from probmetric.planning import declared, own_data
from probmetric.planning.own_data import start
from probmetric.planning.plans import read_data_plan
from probmetric.runs.names import LabelNoise, split_data_name

# Options of `init` and their defaults: for some sources, for data that a network reads, for all data.
OF_SOURCES = {"on_error": "raise", "follow_links": False, "path_column": "", "label_column": ""}
OF_NETWORKS = {"network": "", "scratch": False}
OF_DATA = {"name": None, "split": "", "extent": "usual", **OF_SOURCES, **OF_NETWORKS}
NAMED = {"folder": "a folder of images", "table": "a table of images", "embeddings": "vectors"}


def prepare(options: argparse.Namespace) -> None:
    """Run `probmetric prepare`."""
    folder = declared.prepare(params(), options.dataset, output=options.output, raw=options.raw, progress=True)
    _copy_digest(folder, options.digest)


def noise(options: argparse.Namespace) -> None:
    """Run `probmetric noise`."""
    folder = options.prepared or Path(params().data.prepared)
    dataset, text = split_data_name(options.name)
    noise = LabelNoise.parse(text)
    data.add_noise(folder / dataset, folder / options.name, rate=noise.rate, kind=noise.kind, seed=noise.seed)
    _copy_digest(folder / options.name, options.digest)


def _copy_digest(folder: Path, target: Path | None) -> None:
    """Write the prepared folder's digest also to `target`, the file by which later DVC stages recognise the data."""
    if target is not None:
        check_new_file(target, _is_digest)
        write_text(target, (folder / "digest").read_text(encoding="utf-8"))


def _is_digest(path: Path) -> bool:
    """Say whether a file holds the digest of a prepared dataset."""
    return bool(re.match(rb"[0-9a-f]{64}  manifest\.parquet\n", path.read_bytes()[:128]))


def doctor(options: argparse.Namespace) -> None:
    """Run `probmetric doctor`."""
    folders = options.folders or sorted(path.parent for path in prepared_folder().glob("*/manifest.parquet"))
    if not folders:
        raise FileError(f"{prepared_folder()} holds no prepared dataset; run `probmetric data ensure <dataset>` first.")
    findings = {folder: data.doctor(folder) for folder in folders}
    for folder, problems in findings.items():
        print(f"{folder}: " + ("healthy" if not problems else f"{len(problems)} finding(s)"))
        for finding in problems:
            print(f"  - {finding}")
        for note in [] if problems else read_summary(folder).get("notes", []):
            print(harmless(f"  note: {note}"))
    if any(findings.values()):
        raise FileError("some datasets are not healthy; see above.")


def ensure(options: argparse.Namespace) -> None:
    """Run `probmetric data ensure`."""
    declared.ensure(read_data_plan(options.plan) if options.plan else params(), options.name)


def status(options: argparse.Namespace) -> None:
    """Run `probmetric data status`."""
    print(format_status(declared.status(params())))


def card(options: argparse.Namespace) -> None:
    """Run `probmetric data card`."""
    print(write_card(Path(params().data.prepared) / options.name, options.output, options.license))


def init(options: argparse.Namespace) -> None:
    """Run `probmetric init`."""
    if options.data is None and any(getattr(options, name) != default for name, default in OF_DATA.items()):
        raise FileError("name the data too: `probmetric init photos/ --name shop`.")
    if options.data is None:
        print(
            *start(Path()),
            "Next: snakemake --cores all --config experiments=smoke, or probmetric init photos/ --name shop",
            sep="\n",
        )
        return
    source = own_data.source_of(options.data)
    unread = {name: default for name, default in OF_SOURCES.items() if name not in SOURCES.options(source)}
    check_unused(options, unread | (OF_NETWORKS if source == "embeddings" else {}), NAMED[source])
    wish = own_data.Wish(
        options.data,
        options.name or own_data.name_of(options.data),
        split=options.split,
        options={name: getattr(options, name) for name in OF_SOURCES if name not in unread},
        extent=options.extent,
        scratch=options.scratch,
        network=options.network or own_data.NETWORK,
    )
    print(harmless(own_data.init(wish)))
