"""Run the commands for trained models: export, galleries, search, certificates."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from probmetric import serving
from probmetric.cli import vectors as vectors_command
from probmetric.cli.project import params, prepared_folder
from probmetric.data.loose import LooseImages, in_folders, loose_images, prepared_images
from probmetric.errors import ServingError, harmless
from probmetric.io import present
from probmetric.io.folders import check_claimable, check_new_file, check_replaceable
from probmetric.registry import load_plugins
from probmetric.runs.names import RESULTS
from probmetric.serving.gallery import Gallery
from probmetric.serving.gallery_files import GALLERY, INDEX
from probmetric.serving.vectors import is_vectors, meant_as_vectors
from probmetric.trust.certificates import CertificateError

log = logging.getLogger(__name__)
FOLDER = "folder"  # images of one folder form a group
LEARNT = 20_000  # size of a gallery up to which each image is asked among the others by default


def _load(options: argparse.Namespace, source: str, device: str = "auto") -> serving.Model:
    """Load the model `source`, after the modules whose components it needs."""
    if options.plugin:
        load_plugins(options.plugin)
    return serving.load(source, device=device)


def export(options: argparse.Namespace) -> None:
    """Run `probmetric export`."""
    place = options.place
    if place.suffix in (".onnx", ".pt2"):
        vectors_command.check_unused(options, {"license": ""}, "a single file, which has no card")
        check_new_file(place)
    else:
        sources = (Path(options.run), RESULTS / options.run)
        check_replaceable(place, serving.MODEL_FOLDER, [folder for folder in sources if folder.exists()])
    model = _load(options, options.run, "cpu")
    if place.suffix == ".onnx":
        print(model.to_onnx(place))
    elif place.suffix == ".pt2":
        print(serving.write_program(model.to_program(), place))
    else:
        print(model.save(place, license=options.license))


def index(options: argparse.Namespace) -> None:
    """Run `probmetric index`."""
    check_claimable(options.gallery, GALLERY, [place for place in options.images if place.is_dir()])
    if not present(options.gallery / INDEX) and not options.images:
        raise ServingError(f"{options.gallery} is no gallery yet; name images to make it of.")
    model = _load(options, options.model) if options.images else None
    added, problems = 0, list[tuple[str, str]]()
    with Gallery.changing(options.gallery) as gallery:
        removed = gallery.remove(options.remove) if options.remove else 0
        kept = len(gallery)
        if model is not None:
            for place in options.images:
                added += gallery.add(model, _items(place, options), on_error=options.on_error)
                problems += gallery.problems
        if gallery.labelled and len(gallery) <= LEARNT:
            _ = gallery.trust
    _tell(problems)
    new = len(gallery) - kept
    replaced, left = (
        f", {count} {what}" if count else "" for count, what in ((added - new, "replaced"), (len(problems), "left out"))
    )
    print(harmless(f"{options.gallery}: {len(gallery)} images ({new} added{replaced}, {removed} removed{left})"))


def vectors(options: argparse.Namespace) -> None:
    """Run `probmetric vectors`."""
    serving.check_vectors_file(options.output)
    model, items = _load(options, options.model), _items(options.images, options)
    count, problems = serving.write_vectors(model, items, options.output, on_error=options.on_error)
    _tell(problems)
    left = f", {len(problems)} left out" if problems else ""
    print(harmless(f"{options.output}: {count} images{left}"))


def register(options: argparse.Namespace) -> None:
    """Run `probmetric register`."""
    tracking, model = params().tracking, _load(options, options.model, "cpu")
    place = Path(tracking.artifacts)
    print(serving.register(model, options.name, store_uri=tracking.store, artifact_root=place, license=options.license))


def search(options: argparse.Namespace) -> None:
    """Run `probmetric search`."""
    places = options.images
    if meant_as_vectors(options.model) or all(map(is_vectors, places)):
        vectors_command.search(options)
        return
    vectors_command.check_unused(options, vectors_command.OF_VECTORS, "images")
    stored = present(places[0] / INDEX)
    if stored and len(places) < 2:
        raise ServingError(f"{places[0]} is a gallery; name images to search for after it.")
    if stored:
        vectors_command.check_unused(options, {"splits": ("test",)}, "a gallery")
    images = in_folders(places[stored:]).images
    if options.group not in ("", FOLDER) or (options.group and not options.csv):
        raise ServingError(
            f"images come in groups by their folders: --group {FOLDER} --csv, for `monitor --group group`."
        )
    groups = [str(Path(str(image)).parent) for image in images] if options.group else None
    model = _load(options, options.model)
    gallery = Gallery.open(places[0]) if stored else serving.run_gallery(model, options.model, options.splits)
    rules = {name: getattr(options, name) for name in ("risk", "confidence", "withhold", "strangers", "any_image")}
    answers = model.search(gallery, images, k=options.k, **rules)
    if options.explain:
        from probmetric.serving.model import explain

        explain(model, answers, options.explain)
    vectors_command.tell(answers, groups, csv=options.csv)


def certify(options: argparse.Namespace) -> None:
    """Run `probmetric certify`."""
    if meant_as_vectors(options.model):
        vectors_command.certify(options)
        return
    vectors_command.check_unused(options, vectors_command.OF_VECTORS, "images")
    if options.gallery is None:
        raise ServingError("name the gallery to certify: probmetric certify MODEL GALLERY [CALIBRATION]")
    groups = None
    if options.group:
        if options.group != FOLDER or options.calibration is None:
            raise ServingError(f"images come in groups by their folders: --group {FOLDER}, with calibration images.")
        groups = [str(Path(path).parent) for path in loose_images(options.calibration).paths]
    model, folder = _load(options, options.model), options.gallery
    with Gallery.changing(folder, new=False) as gallery:
        certificate, problem = vectors_command.promised(gallery, options, model, options.calibration, groups=groups)
    if problem:
        raise CertificateError(problem)
    handed = None if options.calibration is None else certificate.queries
    print(harmless(vectors_command.sentence(certificate, folder, gallery, handed)))


def _items(place: Path, options: argparse.Namespace) -> LooseImages:
    """Open images of a prepared dataset (its folder, or its name in the project), of a folder, or of one file."""
    for folder in (place, prepared_folder() / place):
        if (folder / "manifest.parquet").is_file():
            return prepared_images(folder, options.splits)
    vectors_command.check_unused(options, {"splits": ()}, "a folder of images")
    return in_folders([place], follow_links=options.follow_links)


def _tell(problems: Sequence[tuple[str, str]]) -> None:
    for name, reason in problems:
        log.warning("left out: %s: %s", name, reason)


def serve(options: argparse.Namespace) -> None:
    """Run `probmetric serve`."""
    model = _load(options, options.model)
    serving.run_service(model, options.gallery, host=options.host, port=options.port, writable=options.writable)
