"""Declare the commands and their arguments. A command's code is imported when it runs, so that help is fast."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probmetric.runs.folder import STEPS

SPLITS = ("train", "val", "test")
# Declares a command: its name, the module of this folder and the function that run it, one line of help.
Add = Callable[[str, str, str], argparse.ArgumentParser]
# Function -> the example below the command's help.
EXAMPLES = {
    "data:prepare": "prepare digits",
    "data:noise": "noise glyphs+noise0.2",
    "data:doctor": "doctor data/prepared/glyphs",
    "data:init": "init photos/ --name shop",
    "data:ensure": "data ensure glyphs+noise0.2",
    "data:status": "data status",
    "data:card": "data card glyphs --output card/",
    "reports:recommend": "recommend shop",
    "runs:run": "run digits/cosine/seed0",
    "runs:tune": "tune letters",
    "runs:status": "status demo",
    "runs:components": "list losses arcface",
    "runs:experiments": "experiments",
    "reports:schema": "schema",
    "reports:report": "report demo",
    "reports:figure": "figure demo sparsification",
    "reports:track": "track demo",
    "reports:publish": "publish --output site/",
    "reports:ui": "ui --port 5000",
    "models:export": "export digits/cosine/seed0 model/",
    "models:index": "index model/ gallery/ photos/",
    "models:vectors": "vectors model/ photos/ vectors.parquet",
    "models:register": "register model/ shop",
    "models:search": "search model/ gallery/ photo.jpg --risk 0.05",
    "models:serve": "serve model/ gallery/ --port 8000",
    "models:certify": "certify model/ gallery/ labelled/ --risk 0.05",
    "vectors:migrate_gallery": "migrate old.parquet new.parquet --output all.parquet",
    "vectors:try_letters": "try --risk 0.05",
    "certificates:certificate": "certificate digits/cosine/seed0 --risk 0.05",
    "certificates:monitor": "monitor certificate.json answers.csv",
}
MODEL = "a model folder, a finished run, or models:/<name>/<version>"


def declare(commands: Any) -> None:
    """Declare all commands, as parsers of argparse's `commands`."""
    groups = (declare_data, declare_runs, declare_reports, declare_making, declare_asking, declare_certificates)
    for declare_group in groups:
        declare_group(_adding_to(commands))


def _adding_to(commands: Any) -> Add:
    def add(name: str, function: str, text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.epilog = f"Example: probmetric {EXAMPLES[function]}" if function else None
        command.set_defaults(run_command=function)
        return command

    return add


def declare_data(add: Add) -> None:
    """Declare the commands of `data`."""
    command = add("prepare", "data:prepare", "make a prepared dataset from its files (DVC stage prepare@<dataset>)")
    command.add_argument("dataset", help="its name, as `probmetric data status` lists it")
    command.add_argument("--output", type=Path, help="folder to write (default: below data.prepared of params.yaml)")
    command.add_argument("--raw", type=Path, help="folder with its files (default: data.raw of params.yaml)")
    _add_digest(command)

    command = add(
        "noise", "data:noise", "make a variant with wrong training labels (DVC stage noise@<dataset>-<noise>)"
    )
    command.add_argument("name", help="<dataset>+noise<share> or +nearest<share> of wrong labels; ends with s1: seed 1")
    command.add_argument("--prepared", type=Path, help="folder of prepared datasets (default: that of params.yaml)")
    _add_digest(command)

    command = add("doctor", "data:doctor", "check prepared datasets: splits, labels, digests, duplicates")
    command.add_argument("folders", nargs="*", type=Path, help="prepared folders (default: all of the project)")

    _declare_data(add("data", "", "make, list and describe prepared datasets (see `probmetric data -h`)"))

    command = add("init", "data:init", "start a project here, with your own images, table or vectors as a dataset")
    command.add_argument(
        "data", type=Path, nargs="?", help="folder with a folder per class, table (CSV, TSV, Parquet), file of vectors"
    )
    command.add_argument("--name", help="name of the dataset and its experiment (default: that of the folder or file)")
    command.add_argument(
        "--split", choices=["by_class", "by_image", "by_group"], default="", help="default: by_class from 20 classes"
    )
    command.add_argument("--path-column", default="", help="column of a table with the image files (default: path)")
    command.add_argument("--label-column", default="", help="column of a table with the classes (default: label)")
    extent = command.add_mutually_exclusive_group()
    extent.add_argument(
        "--quick", dest="extent", action="store_const", const="quick", help="leave out what trains the whole network"
    )
    extent.add_argument(
        "--full",
        dest="extent",
        action="store_const",
        const="full",
        help="fine-tune for longer, with three seeds, and with ProxyAnchor too",
    )
    command.add_argument("--scratch", action="store_true", help="also train a small network from scratch")
    command.add_argument(
        "--network", default="", metavar="TAG", help="pretrained network of timm (default: tf_efficientnet_lite0.in1k)"
    )
    command.set_defaults(extent="usual")
    add_on_error(command)

    command = add("recommend", "reports:recommend", "say which method to deploy, judged on validation images")
    command.add_argument("experiment", help="the experiment, by the name given to init")
    command.set_defaults(plan=None)


def _declare_data(data: argparse.ArgumentParser) -> None:
    add = _adding_to(data.add_subparsers(dest="data_command", required=True))
    command = add("ensure", "data:ensure", "make a prepared dataset (through DVC) unless it is there already")
    command.add_argument("name", help="a dataset, or a variant of one: glyphs, glyphs+noise0.2, ...")
    command.add_argument("--plan", type=Path, help="plan file of the workflow (default: planned from params.yaml)")
    add("status", "data:status", "list the datasets: which are there, which files are missing, what to do next")
    command = add("card", "data:card", "describe a prepared dataset in a data card (README.md)")
    command.add_argument("name", help="a prepared dataset: letters_exact, glyphs, ...")
    command.add_argument("--output", type=Path, required=True, help="folder to write the card to")
    command.add_argument("--license", default="", help="terms of use of the images, for the card")


def declare_runs(add: Add) -> None:
    """Declare the commands of `runs`."""
    command = add("run", "runs:run", "make one run: train, fit, embed, evaluate; finished steps are skipped")
    command.add_argument("run", help="<dataset>[+noise<rate>]/<method>[+key=value...]/seed<k>")
    command.add_argument("--plan", type=Path, help="plan file of the run (default: planned from params.yaml)")
    command.add_argument("--until", choices=STEPS, default="evaluate", help="last step to make (default: evaluate)")
    command.add_argument("--processes", type=int, default=1, help="number of processes, on any nodes (default: 1)")
    add_threads(command)
    command = add("tune", "runs:tune", "search the settings of methods on validation data; started again, it goes on")
    command.add_argument("search", help="the search: name of a file below workflow/tuning")
    command.add_argument(
        "snakemake",
        nargs=argparse.REMAINDER,
        help="options for snakemake, e.g. --workflow-profile workflow/profiles/slurm",
    )
    command = add("status", "runs:status", "count an experiment's runs: finished, stale (and why), missing")
    command.add_argument("experiment", nargs="?", help="name of the experiment (default: those of params.yaml)")
    command.add_argument("--all", action="store_true", help="print a line for every run")
    command = add("list", "runs:components", "list the components of a kind, or the options of one component")
    command.add_argument("kind", help="losses, uncertainties, backbones, views, metrics, scores, figures or sources")
    command.add_argument("name", nargs="?", help="a component: list its options, their defaults and what they take")
    add("experiments", "runs:experiments", "list all experiments with their runs and the datasets they need")
    command = add(
        "schema",
        "reports:schema",
        "write generated files: catalogue of components, JSON schemas for editors, tables of metrics",
    )
    command.add_argument("--output", type=Path, default=Path("workflow/schemas"), help="folder of the schemas")


def declare_reports(add: Add) -> None:
    """Declare the commands of `reports`."""
    made = "tables, claims, figures, HTML page, files for `dvc plots`"
    command = add("report", "reports:report", f"make an experiment's report: {made}")
    _add_experiment(command, "; or a file of vectors of any model")
    add_threads(command)
    command.add_argument("--output", type=Path, help="HTML page to write, for a file of vectors (default: beside it)")
    _add_columns(command)
    command = add("figure", "reports:figure", "draw one figure of an experiment again and update its page")
    _add_experiment(command)
    command.add_argument("figure", help="name of the figure, as `probmetric list figures` lists it")
    command = add("track", "reports:track", "copy an experiment's results to MLflow")
    _add_experiment(command)
    command.add_argument("--receipt", type=Path, help="JSON file to write, with what was copied")
    command = add("publish", "reports:publish", "collect all report pages and the theory figures in a static website")
    command.add_argument("--output", type=Path, default=Path("site"), help="folder to write (default: site)")
    command = add("ui", "reports:ui", "show the runs in the browser with MLflow, on this machine")
    command.add_argument("--port", type=whole(1, 65535), default=5000, help="port (default: 5000)")


def declare_making(add: Add) -> None:
    """Declare the commands that make models and galleries for use elsewhere."""
    command = add(
        "export", "models:export", "write the model of a finished run as a folder, an ONNX file or a PyTorch program"
    )
    command.add_argument("run", help="a finished run, <dataset>/<method>/seed<k>, or a model folder")
    command.add_argument("place", type=Path, help="folder to write, or model.onnx, or model.pt2 (torch.export)")
    _add_license(command)
    _add_plugin(command)
    command = add("index", "models:index", "make a gallery of images to search in, or add images to it")
    _add_model(command)
    command.add_argument("gallery", type=Path, help="gallery folder to write; images are added to one that exists")
    command.add_argument(
        "images", nargs="*", type=Path, help="image files, folders with images, or a prepared dataset's name"
    )
    command.add_argument("--splits", type=_splits, default=(), help="splits of a prepared dataset (default: all)")
    add_on_error(command)
    command.add_argument("--remove", nargs="+", default=[], metavar="PATH", help="remove these images from the gallery")
    command = add("vectors", "models:vectors", "write embeddings of images to a Parquet file, for a vector database")
    _add_model(command)
    command.add_argument("images", type=Path, help="folder with images, or a prepared dataset's name")
    command.add_argument("output", type=Path, help="Parquet file to write: path, label, split, vector, uncertainty")
    command.add_argument("--splits", type=_splits, default=(), help="splits of a prepared dataset (default: all)")
    add_on_error(command)
    command = add("register", "models:register", "register a model in MLflow, as models:/<name>/<version>")
    _add_model(command, "a finished run, or a model folder")
    command.add_argument("name", help="name of the model in MLflow")
    _add_license(command)


def declare_asking(add: Add) -> None:
    """Declare the commands that search a gallery."""
    command = add("search", "models:search", "find the gallery images nearest to yours, and how sure each answer is")
    _add_model(command)
    command.add_argument(
        "images",
        nargs="+",
        type=Path,
        metavar="[GALLERY] IMAGES",
        help="a gallery folder (default: the images of the run), then image files or folders of yours",
    )
    command.add_argument("-k", type=int, default=5, help="number of matches per image (default: 5)")
    command.add_argument("--splits", type=_splits, default=("test",), help="splits of the run's images (default: test)")
    command.add_argument(
        "--withhold", type=float, default=1.0, help="no answer if this share of validation images is surer, e.g. 0.95"
    )
    command.add_argument("--risk", type=float, help="share of wrong answers allowed, e.g. 0.05; needs a certificate")
    command.add_argument(
        "--confidence", type=float, default=0.9, help="least confidence of the certificate, 0 to 1 (default: 0.9)"
    )
    command.add_argument("--strangers", type=float, default=0.0, help="share of far images left unanswered, e.g. 0.01")
    command.add_argument(
        "--any-image", action="store_true", help="also answer images that do not look like those of the gallery"
    )
    command.add_argument(
        "--csv",
        action="store_true",
        help="print CSV, one row per match; doubt: share of validation images that were surer; p_right: probability "
        "that the class of the first match is right",
    )
    command.add_argument(
        "--explain", type=Path, metavar="FOLDER", help="folder to write pictures to, of the regions that make a match"
    )
    _add_columns(command)

    command = add("serve", "models:serve", "answer searches in a gallery over HTTP")
    _add_model(command)
    command.add_argument("gallery", type=Path, help="gallery folder (`probmetric index` makes one)")
    command.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine only)")
    command.add_argument("--port", type=whole(1, 65535), default=8000, help="port (default: 8000)")
    command.add_argument("--writable", action="store_true", help="let clients add images to the gallery")


def declare_certificates(add: Add) -> None:
    """Declare the commands that make certificates, and check whether they still hold."""
    command = add(
        "certify", "models:certify", "certify what share of a gallery's answers is wrong at most, from labelled images"
    )
    _add_model(command, f"{MODEL}; or a file of vectors (.parquet, .npz, .npy, .safetensors, .faiss, .index)")
    command.add_argument(
        "gallery",
        type=Path,
        nargs="?",
        help="gallery folder, whose images have classes; for vectors: a file of labelled queries",
    )
    command.add_argument(
        "calibration", type=Path, nargs="?", help="labelled images not in the gallery, one folder per class"
    )
    add_promise(command)
    command.add_argument("--score", default="", help="score that decides (default: P(right)); of a,b the better")
    command.add_argument(
        "--tries",
        type=whole(0, 1000),
        default=0,
        help="how many times you will certify with these images, to keep the best score or the smallest risk; each "
        "costs (default: as planned, or 1)",
    )
    command.add_argument("--shares", type=Path, help="CSV with columns class and share: how often each is asked about")
    _add_columns(command)
    command = add("migrate", "vectors:migrate_gallery", "map the vectors of an old model to the space of a new one")
    command.add_argument("old", type=Path, help="file of the old model's vectors, with the columns path and label")
    command.add_argument("new", type=Path, help="file of the new model's vectors for some of the same images")
    command.add_argument("--output", type=Path, required=True, help="Parquet file of vectors to write")
    command.add_argument("--label", default="", help="column of the classes (default: label)")
    command = add("try", "vectors:try_letters", "see a certified and a withheld answer on vectors from the package")
    command.add_argument("--risk", type=float, default=0.05, help="share of wrong answers allowed (default: 0.05)")
    command = add("certificate", "certificates:certificate", "certify the answers of a run among its own test images")
    command.add_argument("run", help="an evaluated run: <dataset>/<method>/seed<k>")
    add_promise(command)
    command.add_argument("--score", default="", help="score that decides (default: P(right); `probmetric list scores`)")
    command.add_argument(
        "--unit", default="auto", choices=["auto", "query", "class"], help="what is drawn independently (default: auto)"
    )
    command.add_argument("--group", default="", help="column of the dataset: what images come from together")
    command = add(
        "monitor", "certificates:monitor", "say whether a certificate still holds, from the log of your queries"
    )
    command.add_argument("certificate", type=Path, help="its file, certificate.json")
    command.add_argument("log", type=Path, help="CSV of `probmetric search --csv`, in the order of the queries")
    command.add_argument(
        "--column", help="column to watch, a doubt or p_right (default: the one by which the certificate decides)"
    )
    command.add_argument(
        "--unordered",
        action="store_true",
        help="shuffle the log, because it is not in the order of the queries (for example by class)",
    )
    command.add_argument(
        "--patience", type=float, default=100_000, help="mean number of good queries to a false alarm (default: 100000)"
    )
    command.add_argument(
        "--group",
        default="",
        help="column with what queries come from together (a walk, a burst); the first of each counts",
    )
    command.add_argument(
        "--labelled",
        nargs="?",
        const="truth",
        metavar="COLUMN",
        help="watch errors, not doubts; column of the true classes, empty where nobody looked (default: truth); look "
        "only at rows below those that you looked at before",
    )
    command.add_argument(
        "--false-alarms", type=float, default=0.01, help="with --labelled: chance of any false alarm (default: 0.01)"
    )


def _add_columns(command: argparse.ArgumentParser) -> None:
    """Declare the options about columns of a file of vectors, the same for certify, search and report."""
    command.add_argument("--label", default="", help="column of a file of vectors with the classes (default: label)")
    command.add_argument(
        "--group",
        default="",
        help="column with what rows come from together (a person, a walk, a burst); for images: folder",
    )
    command.add_argument("--trained-on", type=Path, help="file of the vectors that the model was trained on")


def _add_model(command: argparse.ArgumentParser, text: str = MODEL) -> None:
    """Declare the model, and the modules whose components it needs."""
    command.add_argument("model", help=text)
    _add_plugin(command)


def _add_experiment(command: argparse.ArgumentParser, also: str = "") -> None:
    """Declare the experiment, and the path of its plan."""
    command.add_argument("experiment", help=f"name of a file below workflow/experiments, e.g. demo{also}")
    command.add_argument("--plan", type=Path, help="plan file of the experiment (default: planned from params.yaml)")


def _add_digest(command: argparse.ArgumentParser) -> None:
    command.add_argument("--digest", type=Path, help="also write the digest of the data to this file")


def _add_license(command: argparse.ArgumentParser) -> None:
    command.add_argument("--license", default="", help="terms of use of the model, for its card")


def _add_plugin(command: argparse.ArgumentParser) -> None:
    command.add_argument("--plugin", action="append", default=[], help="Python module whose components the model needs")


def _splits(text: str) -> tuple[str, ...]:
    splits = tuple(filter(None, text.split(",")))
    wrong = [split for split in splits if split not in SPLITS]
    if wrong:
        raise argparse.ArgumentTypeError(f"unknown split {wrong[0]!r}; allowed: {', '.join(SPLITS)}, joined by commas")
    return splits


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an argument that is a whole number from `least` to `most`."""

    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not a number from {least} to {most}")
        return value

    read.__name__ = "whole number"  # the name of the type in argparse's error
    return read


def add_promise(command: argparse.ArgumentParser) -> None:
    """Add the arguments of a certificate: risk and confidence."""
    command.add_argument("--risk", type=float, required=True, help="share of wrong answers allowed, e.g. 0.05")
    command.add_argument("--confidence", type=float, default=0.9, help="chance that the promise holds (default: 0.9)")


def add_on_error(command: argparse.ArgumentParser) -> None:
    """Add the argument for images that cannot be read."""
    command.add_argument("--on-error", choices=["raise", "skip"], default="raise", help="bad image: stop, or skip it")
    command.add_argument("--follow-links", action="store_true", help="also read images that links in a folder lead to")


def add_threads(command: argparse.ArgumentParser) -> None:
    """Add the argument for the number of CPU threads."""
    command.add_argument("--threads", type=whole(1, 4096), default=1, help="number of CPU threads (default: 1)")
