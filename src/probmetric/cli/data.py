"""Commands for data: prepared datasets, their checks and cards, your own images as a dataset."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from probmetric.cli.arguments import Add, add_on_error, harmless, params
from probmetric.io import FileError
from probmetric.io.folders import check_new_file


def prepare(options: argparse.Namespace) -> None:
    """`probmetric prepare`."""
    from probmetric.planning.declared import prepare

    folder = prepare(params(), options.dataset, output=options.output, raw=options.raw, progress=True)
    _copy_digest(folder, options.digest)


def noise(options: argparse.Namespace) -> None:
    """`probmetric noise`."""
    from probmetric.data import add_noise
    from probmetric.runs.names import LabelNoise, split_data_name

    folder = options.prepared or Path(params().data.prepared)
    dataset, text = split_data_name(options.name)
    noise = LabelNoise.parse(text)
    add_noise(folder / dataset, folder / options.name, rate=noise.rate, kind=noise.kind, seed=noise.seed)
    _copy_digest(folder / options.name, options.digest)


def _copy_digest(folder: Path, target: Path | None) -> None:
    """Write the prepared folder's digest to `target` too: the file by which later DVC stages know the data."""
    from probmetric.io import write_text

    if target is not None:
        check_new_file(target, _is_digest)
        write_text(target, (folder / "digest").read_text(encoding="utf-8"))


def _is_digest(path: Path) -> bool:
    """Say whether a file holds the digest of a prepared dataset."""
    return bool(re.match(rb"[0-9a-f]{64}  manifest\.parquet\n", path.read_bytes()[:128]))


def doctor(options: argparse.Namespace) -> None:
    """`probmetric doctor`."""
    from probmetric.data import doctor
    from probmetric.data.manifest import read_summary

    folders = options.folders or sorted(path.parent for path in Path("data/prepared").glob("*/manifest.parquet"))
    if not folders:
        raise FileError("data/prepared holds no prepared dataset; run `probmetric data ensure <dataset>` first.")
    findings = {folder: doctor(folder) for folder in folders}
    for folder, found in findings.items():
        print(f"{folder}: " + ("healthy" if not found else f"{len(found)} finding(s)"))
        for finding in found:
            print(f"  - {finding}")
        for note in [] if found else read_summary(folder).get("notes", []):
            print(harmless(f"  note: {note}"))
    if any(findings.values()):
        raise FileError("some datasets are not healthy; see above.")


def ensure(options: argparse.Namespace) -> None:
    """`probmetric data ensure`."""
    from probmetric.planning.declared import ensure
    from probmetric.planning.plans import DataPlan

    ensure(DataPlan.read(options.plan).params if options.plan else params(), options.name)


def status(options: argparse.Namespace) -> None:
    """`probmetric data status`."""
    from probmetric.data.status import format_status
    from probmetric.planning.declared import status

    print(format_status(status(params())))


def card(options: argparse.Namespace) -> None:
    """`probmetric data card`."""
    from probmetric.data.card import write_card

    for path in write_card(Path(params().data.prepared) / options.name, options.output, options.license):
        print(path)


def init(options: argparse.Namespace) -> None:
    """`probmetric init`."""
    from probmetric.planning.own_data import init
    from probmetric.planning.template import start

    if (options.data is None) != (options.name is None):
        raise FileError("name both the data and what to call it: `probmetric init photos/ --name shop`.")
    written = start(Path())
    if written:
        print(f"Started a project in {Path.cwd()}: {', '.join(written)}.")
    if options.data is None:
        print("Next: snakemake --cores all --config experiments=smoke, or probmetric init photos/ --name shop")
        return
    params()
    print(init(options.data, options.name, split=options.split, options={"on_error": options.on_error}))


def declare(add: Add) -> None:
    """Declare the commands of this module."""
    command = add("prepare", prepare, "make a prepared dataset (DVC stage prepare@<dataset>)")
    command.add_argument("dataset")
    command.add_argument("--output", type=Path, help="folder to write (default: below data.prepared of params.yaml)")
    command.add_argument("--raw", type=Path, help="folder with the archives (default: data.raw of params.yaml)")
    command.add_argument("--digest", type=Path, help="write the data's digest to this file too")

    command = add("noise", noise, "make a variant with wrong training labels (DVC stage noise@<dataset>-<noise>)")
    command.add_argument("name", help="glyphs+noise0.2 (uniform), glyphs+nearest0.2, glyphs+nearest0.2s1 (seed 1)")
    command.add_argument("--prepared", type=Path, help="folder of the prepared datasets (default: params.yaml's)")
    command.add_argument("--digest", type=Path, help="write the data's digest to this file too")

    command = add("doctor", doctor, "check prepared datasets: splits, labels, digests, duplicates")
    command.add_argument("folders", nargs="*", type=Path, help="prepared folders (default: all)")

    _declare_data(add("data", None, "prepared data"))

    command = add("init", init, "start a project here; declare your own images, table or vectors as a dataset")
    command.add_argument(
        "data", type=Path, nargs="?", help="folder with one folder per class; CSV, TSV, Parquet; file of vectors"
    )
    command.add_argument("--name", help="what dataset and experiment are called")
    command.add_argument("--split", choices=["by_class", "by_image", "by_group"], default="", help="default: by number")
    add_on_error(command)


def _declare_data(data: argparse.ArgumentParser) -> None:
    commands = data.add_subparsers(dest="data_command", required=True)
    command = commands.add_parser("ensure", help="make sure a prepared dataset is there, through DVC")
    command.add_argument("name", help="glyphs, glyphs+noise0.2, ...")
    command.add_argument("--plan", type=Path, help="plan file of the workflow (default: params.yaml)")
    command.set_defaults(run_command=ensure)
    command = commands.add_parser(
        "status", help="what is present, what is missing, the files expected, the next command"
    )
    command.set_defaults(run_command=status)
    command = commands.add_parser(
        "card", help="write a data card (Markdown) and a Croissant file of a prepared dataset"
    )
    command.add_argument("name", help="a prepared dataset: letters_exact, glyphs, ...")
    command.add_argument("--output", type=Path, required=True, help="folder to write README.md and croissant.json to")
    command.add_argument("--license", default="", help="under what terms the images may be used")
    command.set_defaults(run_command=card)
