"""What `probmetric export`, `index`, `certify` and `search` do."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probmetric.data.loose import LooseImages, image_files, loose_images, prepared_images
from probmetric.errors import ServingError
from probmetric.io import alone, check_claimable, check_new_file, check_replaceable, present
from probmetric.runs.folder import RunFolder
from probmetric.runs.names import RESULTS
from probmetric.serving._answers import as_csv, as_text
from probmetric.serving._gallery import Gallery
from probmetric.serving._gallery_files import GALLERY, INDEX
from probmetric.serving._loading import load
from probmetric.serving._model import Model, OnError
from probmetric.serving._parts import MODEL_FOLDER

log = logging.getLogger(__name__)
SPLITS = ("train", "val", "test")
LEARNT = 20_000  # images of a gallery that are each asked among the others without being told to


def export(source: str, place: Path, license: str = "") -> Path:
    """Write a model as a model folder, or as one file: ONNX (.onnx), a program of torch.export (.pt2).

    Args:
        source: the model, as of `load`.
        place: folder or file.
        license: under what terms it may be used, for the card of a folder.
    """
    if place.suffix in (".onnx", ".pt2"):
        check_new_file(place)
    else:
        check_replaceable(
            place, MODEL_FOLDER, [folder for folder in (Path(source), RESULTS / source) if folder.exists()]
        )
    model = load(source, device="cpu")
    if place.suffix == ".onnx":
        return model.to_onnx(place)
    if place.suffix == ".pt2":
        from probmetric.serving._graph import write_program

        return write_program(model, place)
    return model.save(place, license=license)


def index(
    source: str,
    places: Sequence[Path],
    folder: Path,
    splits: Sequence[str] = (),
    on_error: OnError = "raise",
    remove: Sequence[str] = (),
) -> str:
    """Make or change the gallery in `folder`; says what became of it.

    Args:
        source: the model, as of `load`.
        places: image files, folders with images, prepared datasets (folder, or name below data/prepared).
        folder: the gallery.
        splits: of prepared datasets.
        on_error: what is done with images that cannot be read.
        remove: names to remove.
    """
    _check_splits(splits)
    check_claimable(folder, GALLERY, [place for place in places if place.is_dir()])
    if not present(folder / INDEX) and not places:
        raise ServingError(f"{folder} is no gallery yet; name images to make it of.")
    model = load(source) if places else None
    with alone(folder):
        return _index(model, places, folder, splits, on_error, remove)


def _index(
    model: Model | None,
    places: Sequence[Path],
    folder: Path,
    splits: Sequence[str],
    on_error: OnError,
    remove: Sequence[str],
) -> str:
    exists = present(folder / INDEX)
    gallery = Gallery.open(folder) if exists else Gallery(model.digest if model else "", 0)
    gone = gallery.remove(remove) if remove else 0
    added, problems = 0, []
    for place in places:
        added += _add(gallery, model, place, splits, on_error) if model else 0
        problems += gallery.problems
    if gallery.labelled and len(gallery) <= LEARNT:
        _ = gallery.trust
    gallery.save(folder)
    _tell(problems)
    left = f", {len(problems)} left out" if problems else ""
    return f"{folder}: {len(gallery)} images ({added} added, {gone} removed{left})"


def _add(gallery: Gallery, model: Model, place: Path, splits: Sequence[str], on_error: OnError) -> int:
    items = _items(place, splits)
    return gallery.add(model, items.images, paths=items.paths, class_names=items.class_names, on_error=on_error)


def _items(place: Path, splits: Sequence[str]) -> LooseImages:
    """Images of a prepared dataset (its folder, or its name below data/prepared), of a folder, or one file."""
    prepared = next(
        (each for each in (place, Path("data/prepared") / place) if (each / "manifest.parquet").is_file()), None
    )
    if prepared is not None:
        return prepared_images(prepared, splits)
    return loose_images(place if place.is_dir() else image_files(place))


def vectors(source: str, place: Path, output: Path, *, splits: Sequence[str] = (), on_error: OnError = "raise") -> str:
    """Write embeddings of images to a Parquet file; says how many.

    Args:
        source: the model, as of `load`.
        place: a folder with images, or a prepared dataset (folder, or name below data/prepared).
        output: the file to write.
        splits: of a prepared dataset.
        on_error: what is done with images that cannot be read.
    """
    from probmetric.serving._vectors import check_vectors_file, write_vectors

    _check_splits(splits)
    check_vectors_file(output)
    count, problems = write_vectors(load(source), _items(place, splits), output, on_error=on_error)
    _tell(problems)
    left = f", {len(problems)} left out" if problems else ""
    return f"{output}: {count} images{left}"


def register(source: str, name: str, store_uri: str, artifact_root: Path, license: str = "") -> str:
    """Register a model in MLflow; its address. Arguments as of `serving._registry.register`."""
    from probmetric.serving._registry import register

    model = load(source, device="cpu")
    return register(model, name, store_uri=store_uri, artifact_root=artifact_root, license=license)


def _tell(problems: Sequence[tuple[str, str]]) -> None:
    for name, reason in problems:
        log.warning("left out: %s: %s", name, reason)


def certify(
    source: str, folder: Path, images: Path | None, *, risk: float, confidence: float = 0.9, score: str = ""
) -> str:
    """Certify the answers of the gallery in `folder`; says what was certified. Arguments as of `Gallery.certify`."""
    model = load(source)
    with alone(folder) if folder.is_dir() else contextlib.nullcontext():
        gallery = Gallery.open(folder)
        found = gallery.certify(model, images, risk=risk, confidence=confidence, score=score)
        gallery.save()
    if found.threshold is None:
        return f"nothing can be certified: at every doubt more than {risk:g} of the answers could be wrong"
    return (
        f"at most {found.risk:g} of the answers given are wrong, with confidence {found.confidence:g}: "
        f"{100 * found.coverage:.0f} % of the {found.queries} calibration queries are answered, {found.errors} of "
        f"{found.answered} wrongly. Valid for {found.valid_for}; kept in {folder}"
    )


def search(
    source: str,
    places: Sequence[Path],
    *,
    splits: Sequence[str] = ("test",),
    k: int = 5,
    as_rows: bool = False,
    **chosen: Any,
) -> str:
    """What the model finds for the images, as text or as CSV.

    Args:
        source: the model, as of `load`.
        places: a gallery and images; or images alone, which are searched among the images of the run `source`.
        splits: which of the run's images, where there is no gallery.
        k: matches per image.
        as_rows: CSV.
        chosen: `risk`, `withhold`, `strangers` and `any_image` of `Model.search`.
    """
    _check_splits(splits)
    stored = present(places[0] / INDEX)
    if stored and len(places) < 2:
        raise ServingError(f"{places[0]} is a gallery; name images to search for after it.")
    images = [file for place in places[stored:] for file in image_files(place)]
    model = load(source)
    gallery = Gallery.open(places[0]) if stored else run_gallery(model, source, splits)
    answers = model.search(gallery, images, k=k, **chosen)
    return as_csv(answers).rstrip() if as_rows else as_text(answers)


def run_gallery(model: Model, source: str, splits: Sequence[str]) -> Gallery:
    """The images of a run's own dataset as a gallery; those it has embedded already are not embedded again.

    Raises:
        ServingError: `source` is no run of this project.
    """
    folder = RunFolder(source) if RunFolder(source).finished else RunFolder.named(source)
    if not folder.finished:
        raise ServingError(f"{source} has no images of its own; name a gallery (`probmetric index` makes one).")
    data = folder.path.resolve().parents[3] / str(folder.find("settings.prepared", default="data/prepared"))
    gallery = Gallery(model.digest, 0)
    for split in splits:
        items = prepared_images(data / folder.key.data, [split])
        if split != "train" and present(folder.embeddings_file("val" if split == "val" else "test")):
            found = folder.tensors("val" if split == "val" else "test", "mean", "uncertainty")
            gallery.take(found["mean"], found["uncertainty"], items.paths, items.class_names)
            gallery.see(model, items.images)
        else:
            gallery.add(model, items.images, paths=items.paths, class_names=items.class_names)
    return gallery


def _check_splits(splits: Sequence[str]) -> None:
    wrong = [split for split in splits if split not in SPLITS]
    if wrong:
        raise ServingError(f"unknown split {wrong[0]!r}; allowed: {', '.join(SPLITS)}, joined by commas.")
