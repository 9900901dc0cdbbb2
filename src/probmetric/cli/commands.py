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
        command.set_defaults(run_command=function)
        return command

    return add


def declare_data(add: Add) -> None:
    """Declare the commands of `data`."""
    command = add("prepare", "data:prepare", "make a prepared dataset (DVC stage prepare@<dataset>)")
    command.add_argument("dataset")
    command.add_argument("--output", type=Path, help="folder to write (default: below data.prepared of params.yaml)")
    command.add_argument("--raw", type=Path, help="folder with the archives (default: data.raw of params.yaml)")
    _add_digest(command)

    command = add(
        "noise", "data:noise", "make a variant with wrong training labels (DVC stage noise@<dataset>-<noise>)"
    )
    command.add_argument("name", help="glyphs+noise0.2 (uniform), glyphs+nearest0.2, glyphs+nearest0.2s1 (seed 1)")
    command.add_argument("--prepared", type=Path, help="folder of the prepared datasets (default: params.yaml's)")
    _add_digest(command)

    command = add("doctor", "data:doctor", "check prepared datasets: splits, labels, digests, duplicates")
    command.add_argument("folders", nargs="*", type=Path, help="prepared folders (default: all)")

    _declare_data(add("data", "", "prepared data"))

    command = add("init", "data:init", "start a project here; declare your own images, table or vectors as a dataset")
    command.add_argument(
        "data", type=Path, nargs="?", help="folder with one folder per class; CSV, TSV, Parquet; file of vectors"
    )
    command.add_argument("--name", help="what dataset and experiment are called (default: as the folder or file)")
    command.add_argument("--split", choices=["by_class", "by_image", "by_group"], default="", help="default: by number")
    command.add_argument("--path-column", default="", help="column of a table that names the files (default: path)")
    command.add_argument("--label-column", default="", help="column of a table that names the classes (default: label)")
    extent = command.add_mutually_exclusive_group()
    extent.add_argument(
        "--quick", dest="extent", action="store_const", const="quick", help="do not train the whole network"
    )
    extent.add_argument(
        "--full",
        dest="extent",
        action="store_const",
        const="full",
        help="fine-tune three seeds, longer, and with ProxyAnchor, too",
    )
    command.add_argument("--scratch", action="store_true", help="train a small net from scratch, too")
    command.add_argument(
        "--network", default="", metavar="TAG", help="pretrained network of timm (default: tf_efficientnet_lite0.in1k)"
    )
    command.set_defaults(extent="usual")
    add_on_error(command)

    command = add("recommend", "reports:recommend", "say which method of an experiment on your own data to deploy")
    command.add_argument("experiment", help="its name, as given to init")
    command.set_defaults(plan=None)


def _declare_data(data: argparse.ArgumentParser) -> None:
    add = _adding_to(data.add_subparsers(dest="data_command", required=True))
    command = add("ensure", "data:ensure", "make sure a prepared dataset is there, through DVC")
    command.add_argument("name", help="glyphs, glyphs+noise0.2, ...")
    command.add_argument("--plan", type=Path, help="plan file of the workflow (default: params.yaml)")
    add("status", "data:status", "what is present, what is missing, the files expected, the next command")
    command = add("card", "data:card", "write a data card (Markdown) of a prepared dataset")
    command.add_argument("name", help="a prepared dataset: letters_exact, glyphs, ...")
    command.add_argument("--output", type=Path, required=True, help="folder to write README.md to")
    command.add_argument("--license", default="", help="under what terms the images may be used")


def declare_runs(add: Add) -> None:
    """Declare the commands of `runs`."""
    command = add("run", "runs:run", "make one run: train, fit, embed, evaluate; what is made is skipped")
    command.add_argument("run", help="<dataset>[+noise<rate>]/<method>[+key=value...]/seed<k>")
    command.add_argument("--plan", type=Path, help="plan file of the run (default: resolve from params.yaml)")
    command.add_argument("--until", choices=STEPS, default="evaluate", help="the step to end with")
    command.add_argument("--processes", type=int, default=1, help="processes that share the work, on any nodes")
    add_threads(command)
    command = add("tune", "runs:tune", "search a method's settings on validation data; started again it goes on")
    command.add_argument("search", help="name of a file below workflow/tuning")
    command.add_argument(
        "snakemake",
        nargs=argparse.REMAINDER,
        help="options for snakemake, e.g. --workflow-profile workflow/profiles/slurm",
    )
    command = add("status", "runs:status", "list an experiment's runs: finished, stale (why), missing")
    command.add_argument("experiment", nargs="?", help="default: those of params.yaml")
    command.add_argument("--all", action="store_true", help="a line for every run, also where there are many")
    command = add(
        "list", "runs:components", "list components, or the options of one: losses, views, metrics, sources, ..."
    )
    command.add_argument("kind", help="losses, uncertainties, backbones, views, metrics, scores, figures or sources")
    command.add_argument("name", nargs="?", help="one of them: its options, with defaults and what they take")
    add("experiments", "runs:experiments", "list the experiments with their runs and the data they need")
    command = add(
        "schema",
        "reports:schema",
        "write what is generated: components' catalogue, JSON schemas for editors, tables of metrics",
    )
    command.add_argument("--output", type=Path, default=Path("workflow/schemas"))


def declare_reports(add: Add) -> None:
    """Declare the commands of `reports`."""
    made = "tables, claims, figures, page, the files of `dvc plots`"
    command = add("report", "reports:report", f"make an experiment's report: {made}")
    _add_experiment(command, "; or a file of vectors of any model")
    add_threads(command)
    command.add_argument("--output", type=Path, help="page of a file of vectors (default: beside it)")
    _add_columns(command)
    command = add("figure", "reports:figure", "draw one figure of an experiment again, and renew its page")
    _add_experiment(command)
    command.add_argument("figure", help="metric_per_method, learning_curves, ...")
    command = add("track", "reports:track", "bring MLflow up to date with an experiment's results")
    _add_experiment(command)
    command.add_argument("--receipt", type=Path, help="JSON file that says what was written")
    command = add("publish", "reports:publish", "collect all pages and the theory figures in a static site")
    command.add_argument("--output", type=Path, default=Path("site"))
    command = add("ui", "reports:ui", "browse the runs in the MLflow UI on this machine")
    command.add_argument("--port", type=whole(1, 65535), default=5000)


def declare_making(add: Add) -> None:
    """Declare the commands that make models and galleries for use elsewhere."""
    command = add(
        "export", "models:export", "write a finished run as a model folder that loads anywhere, or as an ONNX file"
    )
    command.add_argument("run", help="a finished run, <dataset>/<method>/seed<k>, or a model folder")
    command.add_argument("place", type=Path, help="model folder to write; or model.onnx, model.pt2 (torch.export)")
    _add_license(command)
    _add_plugin(command)
    command = add("index", "models:index", "make a gallery of images to search in, or add images to it")
    _add_model(command)
    command.add_argument("gallery", type=Path, help="gallery folder to write; one that exists grows")
    command.add_argument(
        "images", nargs="*", type=Path, help="folders with images, files, or a prepared dataset's name"
    )
    command.add_argument(
        "--splits", type=_splits, default=(), help="of a prepared dataset, e.g. train,val (default: all)"
    )
    add_on_error(command)
    command.add_argument("--remove", nargs="+", default=[], metavar="PATH", help="remove these images from the gallery")
    command = add("vectors", "models:vectors", "write embeddings to a Parquet file, for a vector database")
    _add_model(command)
    command.add_argument("images", type=Path, help="a folder with images, or a prepared dataset's name")
    command.add_argument("output", type=Path, help="file to write: path, label, split, vector, uncertainty, ...")
    command.add_argument("--splits", type=_splits, default=(), help="of a prepared dataset (default: all)")
    add_on_error(command)
    command = add("register", "models:register", "register a model in MLflow, as models:/<name>/<version>")
    _add_model(command, "a finished run, or a model folder")
    command.add_argument("name", help="what it is called there")
    _add_license(command)


def declare_asking(add: Add) -> None:
    """Declare the commands that search a gallery."""
    command = add("search", "models:search", "find the images of a gallery nearest to yours, and how sure it is")
    _add_model(command)
    command.add_argument(
        "images",
        nargs="+",
        type=Path,
        metavar="[GALLERY] IMAGES",
        help="a gallery folder (without one: the run's own images), then image files or folders with images",
    )
    command.add_argument("-k", type=int, default=5, help="matches per image (default: 5)")
    command.add_argument("--splits", type=_splits, default=("test",), help="of the run's images (default: test)")
    command.add_argument(
        "--withhold", type=float, default=1.0, help="no answer for images less sure than this share, e.g. 0.95"
    )
    command.add_argument("--risk", type=float, help="answer so that at most this share is wrong (needs a certificate)")
    command.add_argument(
        "--confidence", type=float, default=0.9, help="at which the certificate must hold (default: 0.9)"
    )
    command.add_argument("--strangers", type=float, default=0.0, help="no answer for the farthest, e.g. 0.01")
    command.add_argument(
        "--any-image", action="store_true", help="also answer images that look like none of the gallery"
    )
    command.add_argument(
        "--csv",
        action="store_true",
        help="one row per match, for programs; doubt: share of the validation images that were surer, p_right: "
        "probability that the class of the first match is right",
    )
    command.add_argument(
        "--explain", type=Path, metavar="FOLDER", help="draw which regions make each image match its nearest, there"
    )
    _add_columns(command)

    command = add("serve", "models:serve", "answer questions to a gallery over HTTP")
    _add_model(command)
    command.add_argument("gallery", type=Path, help="gallery folder (`probmetric index` makes one)")
    command.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine only)")
    command.add_argument("--port", type=whole(1, 65535), default=8000, help="port (default: 8000)")
    command.add_argument("--writable", action="store_true", help="images may be added to the gallery")


def declare_certificates(add: Add) -> None:
    """Declare the commands that make certificates, and check whether they still hold."""
    command = add(
        "certify", "models:certify", "certify how often the answers of a gallery are wrong, from labelled images"
    )
    _add_model(command, f"{MODEL}; or a file of vectors (.parquet, .npz, .npy, .safetensors, .faiss, .index)")
    command.add_argument(
        "gallery",
        type=Path,
        nargs="?",
        help="gallery folder, whose images have classes; of vectors: a file of labelled queries",
    )
    command.add_argument(
        "calibration", type=Path, nargs="?", help="one folder per class with images that are not in the gallery"
    )
    add_promise(command)
    command.add_argument("--score", default="", help="what decides (default: P(right)); a,b: the pilot chooses")
    command.add_argument(
        "--tries",
        type=whole(0, 1000),
        default=0,
        help="scores to be tried one after the other: each pays (default: as planned first, or 1)",
    )
    command.add_argument("--shares", type=Path, help="CSV with class and share: how often deployment asks about each")
    _add_columns(command)
    command = add("migrate", "vectors:migrate_gallery", "map a gallery's vectors to the space of a new model")
    command.add_argument("old", type=Path, help="file of vectors by the old model, with the columns path and label")
    command.add_argument("new", type=Path, help="file of some of the same images' vectors by the new model")
    command.add_argument("--output", type=Path, required=True, help="Parquet file of vectors to write")
    command.add_argument("--label", default="", help="column of the classes (default: label)")
    command = add("try", "vectors:try_letters", "ask bundled vectors of letters: a certified answer and a withheld one")
    command.add_argument("--risk", type=float, default=0.05, help="share of wrong answers allowed (default: 0.05)")
    command = add("certificate", "certificates:certificate", "certify the answers of a run's own test gallery")
    command.add_argument("run", help="an evaluated run: <dataset>/<method>/seed<k>")
    add_promise(command)
    command.add_argument("--score", default="", help="what decides (default: P(right); `probmetric list scores`)")
    command.add_argument(
        "--unit", default="auto", choices=["auto", "query", "class"], help="what is drawn independently"
    )
    command.add_argument("--group", default="", help="column of the dataset: what images come from together")
    command = add(
        "monitor", "certificates:monitor", "say whether a certificate has expired, from the log of the queries answered"
    )
    command.add_argument("certificate", type=Path, help="certificate.json")
    command.add_argument("log", type=Path, help="CSV of `probmetric search --csv`, in the order of the queries")
    command.add_argument(
        "--column", help="column to watch: a doubt, or p_right (default: p_right or certified_doubt, as it decides)"
    )
    command.add_argument(
        "--unordered",
        action="store_true",
        help="the log is not in the order of the queries (folders list them by class): shuffle it",
    )
    command.add_argument(
        "--patience", type=float, default=100_000, help="clean queries to a false alarm, on average at least"
    )
    command.add_argument(
        "--group",
        default="",
        help="column of what queries come from together (a walk, a burst): the first of each counts",
    )
    command.add_argument(
        "--labelled",
        nargs="?",
        const="truth",
        metavar="COLUMN",
        help="watch errors, not doubts: column of true classes, empty where nobody looked (default: truth)",
    )
    command.add_argument(
        "--false-alarms", type=float, default=0.01, help="of --labelled: chance of ever a false alarm (default: 0.01)"
    )


def _add_columns(command: argparse.ArgumentParser) -> None:
    """Declare the options about columns of a file of vectors, the same for certify, search and report."""
    command.add_argument("--label", default="", help="column of the classes in a file of vectors (default: label)")
    command.add_argument(
        "--group",
        default="",
        help="its column of what rows come from together (a person, a walk, a burst); of images: folder",
    )
    command.add_argument("--trained-on", type=Path, help="file of vectors that the model was trained on")


def _add_model(command: argparse.ArgumentParser, text: str = MODEL) -> None:
    """Declare the model, and the modules whose components it needs."""
    command.add_argument("model", help=text)
    _add_plugin(command)


def _add_experiment(command: argparse.ArgumentParser, also: str = "") -> None:
    """Declare the experiment, and the path of its plan."""
    command.add_argument("experiment", help=f"name of a file below workflow/experiments, e.g. demo{also}")
    command.add_argument("--plan", type=Path, help="plan file of the experiment (default: params.yaml)")


def _add_digest(command: argparse.ArgumentParser) -> None:
    command.add_argument("--digest", type=Path, help="write the data's digest to this file too")


def _add_license(command: argparse.ArgumentParser) -> None:
    command.add_argument("--license", default="", help="under what terms the model may be used, for its card")


def _add_plugin(command: argparse.ArgumentParser) -> None:
    command.add_argument("--plugin", action="append", default=[], help="module whose components the model needs")


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
    command.add_argument("--on-error", choices=["raise", "skip"], default="raise", help="what is done with bad images")
    command.add_argument("--follow-links", action="store_true", help="also images that links in a folder lead to")


def add_threads(command: argparse.ArgumentParser) -> None:
    """Add the argument for the number of CPU threads."""
    command.add_argument("--threads", type=whole(1, 4096), default=1, help="CPU threads")
