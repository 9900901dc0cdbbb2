"""Commands for trained models: export, galleries, search, certificates."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.cli import vectors as vectors_command
from probmetric.cli.arguments import Add, add_on_error, add_promise, harmless, params
from probmetric.errors import ServingError
from probmetric.io import FileError, present
from probmetric.io.folders import check_claimable, check_new_file, check_replaceable

if TYPE_CHECKING:
    from probmetric.data.loose import LooseImages
    from probmetric.serving import Model

log = logging.getLogger(__name__)
MODEL = "a model folder, a finished run, or models:/<name>/<version>"
SPLITS = ("train", "val", "test")
LEARNT = 20_000  # images of a gallery that are each asked among the others without being told to


def _load(options: argparse.Namespace, source: str, device: str = "auto") -> Model:
    """Load the model `source`, after the modules whose components it needs."""
    from probmetric.registry import load_plugins
    from probmetric.serving import load

    if options.plugin:
        load_plugins(options.plugin)
    return load(source, device=device)


def export(options: argparse.Namespace) -> None:
    """`probmetric export`."""
    from probmetric.runs.names import RESULTS
    from probmetric.serving.model_folder import MODEL_FOLDER

    place = options.place
    if place.suffix in (".onnx", ".pt2"):
        check_new_file(place)
    else:
        sources = (Path(options.run), RESULTS / options.run)
        check_replaceable(place, MODEL_FOLDER, [folder for folder in sources if folder.exists()])
    model = _load(options, options.run, "cpu")
    if place.suffix == ".onnx":
        print(model.to_onnx(place))
    elif place.suffix == ".pt2":
        from probmetric.serving.export import write_program

        print(write_program(model.to_program(), place))
    else:
        print(model.save(place, license=options.license))


def index(options: argparse.Namespace) -> None:
    """`probmetric index`."""
    from probmetric.serving import Gallery
    from probmetric.serving.gallery_files import GALLERY, INDEX

    _check_splits(options.splits)
    check_claimable(options.gallery, GALLERY, [place for place in options.images if place.is_dir()])
    if not present(options.gallery / INDEX) and not options.images:
        raise ServingError(f"{options.gallery} is no gallery yet; name images to make it of.")
    model = _load(options, options.model) if options.images else None
    added, problems = 0, list[tuple[str, str]]()
    with Gallery.changing(options.gallery) as gallery:
        removed = gallery.remove(options.remove) if options.remove else 0
        if model is not None:
            for place in options.images:
                items = _items(place, options.splits)
                names = {"paths": items.paths, "class_names": items.class_names}
                added += gallery.add(model, items.images, **names, on_error=options.on_error)
                problems += gallery.problems
        if gallery.labelled and len(gallery) <= LEARNT:
            _ = gallery.trust
    _tell(problems)
    left = f", {len(problems)} left out" if problems else ""
    print(harmless(f"{options.gallery}: {len(gallery)} images ({added} added, {removed} removed{left})"))


def vectors(options: argparse.Namespace) -> None:
    """`probmetric vectors`."""
    from probmetric.serving.export import check_vectors_file, write_vectors

    _check_splits(options.splits)
    check_vectors_file(options.output)
    model, items = _load(options, options.model), _items(options.images, options.splits)
    count, problems = write_vectors(model, items, options.output, on_error=options.on_error)
    _tell(problems)
    left = f", {len(problems)} left out" if problems else ""
    print(harmless(f"{options.output}: {count} images{left}"))


def register(options: argparse.Namespace) -> None:
    """`probmetric register`."""
    from probmetric.serving.registry import register

    tracking, model = params().tracking, _load(options, options.model, "cpu")
    place = Path(tracking.artifacts)
    print(register(model, options.name, store_uri=tracking.store, artifact_root=place, license=options.license))


def search(options: argparse.Namespace) -> None:
    """`probmetric search`."""
    from probmetric.serving.vectors import is_vectors

    _check_splits(options.splits)
    places = options.images
    if all(map(is_vectors, places)):
        vectors_command.search(options)
        return
    from probmetric.data.loose import image_files
    from probmetric.serving import Gallery
    from probmetric.serving.gallery_files import INDEX
    from probmetric.serving.model_folder import run_gallery
    from probmetric.serving.search import as_csv, as_text

    stored = present(places[0] / INDEX)
    if stored and len(places) < 2:
        raise ServingError(f"{places[0]} is a gallery; name images to search for after it.")
    images = [file for place in places[stored:] for file in image_files(place)]
    model = _load(options, options.model)
    gallery = Gallery.open(places[0]) if stored else run_gallery(model, options.model, options.splits)
    rules = {name: getattr(options, name) for name in ("risk", "confidence", "withhold", "strangers", "any_image")}
    answers = model.search(gallery, images, k=options.k, **rules)
    said = as_csv(answers).rstrip() if options.csv else as_text(answers)
    print(said if options.csv and not sys.stdout.isatty() else harmless(said))  # a program gets the names as they are


def certify(options: argparse.Namespace) -> None:
    """`probmetric certify`."""
    from probmetric.serving import Gallery
    from probmetric.serving.gallery_files import INDEX
    from probmetric.serving.vectors import is_vectors

    if is_vectors(options.model):
        vectors_command.certify(options)
        return
    if options.gallery is None:
        raise ServingError("name the gallery to certify: probmetric certify MODEL GALLERY [CALIBRATION]")
    model, folder = _load(options, options.model), options.gallery
    if not present(folder / INDEX):
        Gallery.open(folder)  # says that it is none
    with Gallery.changing(folder) as gallery:
        certificate = vectors_command.promised(gallery, options, model, options.calibration)
    print(harmless(vectors_command.sentence(certificate, folder)))


def _items(place: Path, splits: Sequence[str]) -> LooseImages:
    """Images of a prepared dataset (its folder, or its name below data/prepared), of a folder, or one file."""
    from probmetric.data.loose import image_files, loose_images, prepared_images

    for folder in (place, Path("data/prepared") / place):
        if (folder / "manifest.parquet").is_file():
            return prepared_images(folder, splits)
    return loose_images(place if place.is_dir() else image_files(place))


def _check_splits(splits: Sequence[str]) -> None:
    wrong = [split for split in splits if split not in SPLITS]
    if wrong:
        raise ServingError(f"unknown split {wrong[0]!r}; allowed: {', '.join(SPLITS)}, joined by commas.")


def _tell(problems: Sequence[tuple[str, str]]) -> None:
    for name, reason in problems:
        log.warning("left out: %s: %s", name, reason)


def certificate(options: argparse.Namespace) -> None:
    """`probmetric certificate`."""
    from probmetric.runs.steps import certify

    print(
        certify(options.run, risk=options.risk, confidence=options.confidence, score=options.score, unit=options.unit)
    )


def monitor(options: argparse.Namespace) -> None:
    """`probmetric monitor`."""
    import numpy as np

    from probmetric.trust.certificates import Certificate
    from probmetric.trust.drift import logged_doubts, monitor

    reference = Certificate.load(options.certificate).reference
    doubts = logged_doubts(options.log, options.column)
    if options.unordered:  # a folder lists its images class by class, which is no order that calibration has
        doubts = np.random.default_rng(0).permutation(doubts)
    report = monitor(reference, doubts, patience=options.patience)
    print(report.text)
    if report.alarm:
        raise FileError(
            "the certificate has expired: these queries are not like those it was made from. Look at the answers since "
            "then (other cameras, other classes, another gallery?), label some and certify again."
        )


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
    command.add_argument(
        "--confidence", type=float, default=0.9, help="at which the certificate must hold (default: 0.9)"
    )
    command.add_argument("--strangers", type=float, default=0.0, help="no answer for the farthest, e.g. 0.01")
    command.add_argument(
        "--any-image", action="store_true", help="also answer images that look like none of the gallery"
    )
    command.add_argument("--csv", action="store_true", help="one row per match, for programs")
    _add_plugin(command)


def _declare_certificates(add: Add) -> None:
    command = add("certify", certify, "certify how often the answers of a gallery are wrong, from labelled images")
    command.add_argument(
        "model", help=f"{MODEL}; or a file of vectors of any model (.parquet, .npz, .npy, .safetensors)"
    )
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
    command.add_argument("--score", default="", help="what decides (default: P(right))")
    command.add_argument("--label", default="", help="column of the classes in a file of vectors (default: label)")
    _add_plugin(command)
    command = add(
        "try", vectors_command.attempt, "ask bundled vectors of letters: a certified answer and a withheld one"
    )
    command.add_argument("--risk", type=float, default=0.1, help="share of wrong answers allowed (default: 0.1)")
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
