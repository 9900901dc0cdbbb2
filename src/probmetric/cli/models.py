"""Commands for trained models: export, galleries, search, certificates."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from probmetric.cli.arguments import Add, add_on_error, add_promise, harmless, params
from probmetric.io import FileError

MODEL = "a model folder, a finished run, or models:/<name>/<version>"


def export(options: argparse.Namespace) -> None:
    """`probmetric export`."""
    from probmetric.serving.commands import export

    _load_named(options.plugin)
    print(export(options.run, options.place, options.license))


def index(options: argparse.Namespace) -> None:
    """`probmetric index`."""
    from probmetric.serving.commands import index

    _load_named(options.plugin)
    said = index(options.model, options.images, options.gallery, options.splits, options.on_error, options.remove)
    print(harmless(said))


def vectors(options: argparse.Namespace) -> None:
    """`probmetric vectors`."""
    from probmetric.serving.commands import vectors

    _load_named(options.plugin)
    chosen = {"splits": options.splits, "on_error": options.on_error}
    print(harmless(vectors(options.model, options.images, options.output, **chosen)))


def register(options: argparse.Namespace) -> None:
    """`probmetric register`."""
    from probmetric.serving.commands import register

    _load_named(options.plugin)
    tracking = params().tracking
    print(register(options.model, options.name, tracking.store, Path(tracking.artifacts), options.license))


def search(options: argparse.Namespace) -> None:
    """`probmetric search`."""
    from probmetric.serving.commands import search

    _load_named(options.plugin)
    chosen = {name: getattr(options, name) for name in ("risk", "withhold", "strangers", "any_image")}
    found = search(options.model, options.images, splits=options.splits, k=options.k, as_rows=options.csv, **chosen)
    print(found if options.csv and not sys.stdout.isatty() else harmless(found))  # a program gets the names as they are


def certify(options: argparse.Namespace) -> None:
    """`probmetric certify`."""
    from probmetric.serving.commands import certify

    _load_named(options.plugin)
    chosen = {"risk": options.risk, "confidence": options.confidence, "score": options.score}
    print(harmless(certify(options.model, options.gallery, options.calibration, **chosen)))


def _load_named(plugins: Sequence[str]) -> None:
    """Import the modules whose components a model needs."""
    if plugins:
        from probmetric.registry import load_plugins

        load_plugins(plugins)


def certificate(options: argparse.Namespace) -> None:
    """`probmetric certificate`."""
    from probmetric.runs.steps import certify

    print(
        certify(options.run, risk=options.risk, confidence=options.confidence, score=options.score, unit=options.unit)
    )


def monitor(options: argparse.Namespace) -> None:
    """`probmetric monitor`."""
    from probmetric.trust.certificates import Certificate
    from probmetric.trust.monitor import monitored

    report = monitored(
        Certificate.load(options.certificate),
        options.log,
        column=options.column,
        patience=options.patience,
        ordered=not options.unordered,
    )
    print(report.text)
    if report.expired:
        raise FileError(report.advice)


def declare(add: Add) -> None:
    """Declare the commands of this module."""
    _declare_making(add)
    _declare_asking(add)
    _declare_certificates(add)


def _declare_making(add: Add) -> None:
    """Models and galleries to be used elsewhere."""
    command = add("export", export, "write a finished run as a model folder that loads anywhere, or as an ONNX file")
    command.add_argument("run", help="a finished run, <dataset>/<method>/seed<k>, or a model folder")
    command.add_argument("place", type=Path, help="model folder to write; or model.onnx, model.pt2 (torch.export)")
    command.add_argument("--license", default="", help="under what terms the model may be used, for its card")
    _add_plugin(command)
    command = add("index", index, "make a gallery of images to search in, or add images to it")
    command.add_argument("model", help=MODEL)
    command.add_argument(
        "images", nargs="*", type=Path, help="folders with images, files, or a prepared dataset's name"
    )
    command.add_argument("--gallery", type=Path, required=True, help="gallery folder; one that exists grows")
    command.add_argument(
        "--splits", type=_listed, default=(), help="of a prepared dataset, e.g. train,val (default: all)"
    )
    add_on_error(command)
    command.add_argument("--remove", nargs="+", default=[], metavar="PATH", help="remove these images from the gallery")
    _add_plugin(command)
    command = add("vectors", vectors, "write embeddings to a Parquet file, for a vector database")
    command.add_argument("model", help=MODEL)
    command.add_argument("images", type=Path, help="a folder with images, or a prepared dataset's name")
    command.add_argument("output", type=Path, help="file to write: path, label, split, vector, uncertainty, ...")
    command.add_argument("--splits", type=_listed, default=(), help="of a prepared dataset (default: all)")
    add_on_error(command)
    _add_plugin(command)
    command = add("register", register, "register a model in MLflow, as models:/<name>/<version>")
    command.add_argument("model", help="a finished run, or a model folder")
    command.add_argument("name", help="what it is called there")
    command.add_argument("--license", default="", help="under what terms the model may be used, for its card")
    _add_plugin(command)


def _declare_asking(add: Add) -> None:
    command = add("search", search, "find the images of a gallery nearest to yours, and how sure it is")
    command.add_argument("model", help=MODEL)
    command.add_argument(
        "images",
        nargs="+",
        type=Path,
        metavar="[GALLERY] IMAGES",
        help="a gallery folder (without one: the run's own images), then image files or folders with images",
    )
    command.add_argument("-k", type=int, default=5, help="matches per image (default: 5)")
    command.add_argument("--splits", type=_listed, default=("test",), help="of the run's images (default: test)")
    command.add_argument(
        "--withhold", type=float, default=1.0, help="no answer for images less sure than this share, e.g. 0.95"
    )
    command.add_argument("--risk", type=float, help="answer so that at most this share is wrong (needs a certificate)")
    command.add_argument("--strangers", type=float, default=0.0, help="no answer for the farthest, e.g. 0.01")
    command.add_argument(
        "--any-image", action="store_true", help="also answer images that look like none of the gallery"
    )
    command.add_argument("--csv", action="store_true", help="one row per match, for programs")
    _add_plugin(command)


def _declare_certificates(add: Add) -> None:
    command = add("certify", certify, "certify how often the answers of a gallery are wrong, from labelled images")
    command.add_argument("model", help=MODEL)
    command.add_argument("gallery", type=Path, help="gallery folder, whose images have classes")
    command.add_argument(
        "calibration", type=Path, nargs="?", help="one folder per class with images that are not in the gallery"
    )
    add_promise(command)
    command.add_argument("--score", default="", help="what decides (default: P(right))")
    _add_plugin(command)
    command = add("certificate", certificate, "certify the answers of a run's own test gallery, from its match record")
    command.add_argument("run", help="an evaluated run: <dataset>/<method>/seed<k>")
    add_promise(command)
    command.add_argument("--score", default="", help="what decides (default: P(right); `probmetric list scores`)")
    command.add_argument(
        "--unit", default="auto", choices=["auto", "query", "class"], help="what is drawn independently"
    )
    command = add("monitor", monitor, "say whether a certificate has expired, from the log of the queries answered")
    command.add_argument("certificate", type=Path, help="certificate.json")
    command.add_argument("log", type=Path, help="CSV of `probmetric search --csv`, in the order of the queries")
    command.add_argument("--column", default="p_right", help="column to watch: p_right, or a doubt (default: p_right)")
    command.add_argument(
        "--unordered",
        action="store_true",
        help="the log is not in the order of the queries (folders list them by class): shuffle it",
    )
    command.add_argument(
        "--patience", type=float, default=100_000, help="clean queries to a false alarm, on average at least"
    )


def _add_plugin(command: argparse.ArgumentParser) -> None:
    command.add_argument("--plugin", action="append", default=[], help="module whose components the model needs")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
