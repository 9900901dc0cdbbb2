"""Run the commands on vectors of any embedding model: `certify`, `search` and `report` on a file, and `try`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from probmetric.data.manifest import DataError
from probmetric.data.sources.table import columns_of
from probmetric.errors import ServingError, harmless
from probmetric.io import present
from probmetric.io.folders import check_new_file, check_new_parquet
from probmetric.metrics.arrays import class_names_of
from probmetric.serving.frames import check_one_model
from probmetric.serving.gallery import Gallery
from probmetric.serving.gallery_files import INDEX
from probmetric.serving.migration import migrate, write_migrated
from probmetric.serving.search import Answer, as_csv, as_text
from probmetric.serving.vectors import (
    calibrating,
    example_vectors,
    gallery_folder,
    gallery_of,
    read_vectors,
    warn_of_bursts,
)
from probmetric.serving.vectors_page import is_ours, write_page
from probmetric.trust.certificate_page import needed
from probmetric.trust.certificates import Certificate, CertificateError

log = logging.getLogger(__name__)
TRIED = 0.25  # share of the letters that are queries
STEPS = 10  # steps of a page, for the progress bar
OF_IMAGES = {"splits": ("test",), "withhold": 1.0, "any_image": False, "explain": None, "plugin": []}
OF_VECTORS = {"label": "", "trained_on": None}
OTHER_RISKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


def check_unused(options: argparse.Namespace, defaults: Mapping[str, Any], what: str) -> None:
    """Refuse options that are set (not at their defaults) but do not apply to `what`.

    Raises:
        ServingError: such an option is set.
    """
    for name, default in defaults.items():
        if getattr(options, name, default) != default:
            raise ServingError(f"--{name.replace('_', '-')} says nothing of {what}; leave it out.")


def certify(options: argparse.Namespace) -> None:
    """Certify a file of vectors; gallery and certificate are stored in a folder beside the file."""
    if options.calibration or options.plugin:
        raise ServingError("a file of vectors needs no model: probmetric certify vectors.parquet [calibration.parquet]")
    part, queries = calibrating(Path(options.model), options.gallery, **_columns(options))
    calibrates = part if queries is None else queries
    warn_of_bursts(calibrates)
    if calibrates.rows.dtype != np.float32 and part.hits is None:
        log.info("vectors are stored as %s; the certificate is for answers by these", calibrates.rows.dtype)
    gallery, folder = gallery_of(part), gallery_folder(part.file)
    calibration = () if queries is None else (queries.rows, queries.labels)
    groups = None if queries is None else queries.groups
    del part, queries, calibrates  # a second copy of the vectors
    certificate, problem = promised(gallery, options, None, *calibration, groups=groups)
    gallery.save(folder)  # every try is recorded, whatever its result; a refusal is no try and changes nothing
    if problem:
        raise CertificateError(problem)
    print(harmless(sentence(certificate, folder, gallery, len(calibration[0]) if calibration else None)))


def _columns(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options about the file, as arguments of `calibrating`."""
    return {name: getattr(options, name) for name in ("label", "group", "trained_on")}


def promised(
    gallery: Gallery, options: argparse.Namespace, *calibration: Any, groups: Any = None
) -> tuple[Certificate, str]:
    """Return the certificate for the options, stored with the gallery; arguments as for `Gallery.certify`.

    Returns:
        The certificate, and a text: which risk could be certified if this one cannot, else "".
    """
    rules: dict[str, Any] = {"confidence": options.confidence, "score": options.score, "tries": options.tries or None}
    if options.shares:
        rules["shares"] = class_shares(options.shares)
    certified = gallery.promises(*calibration, groups=groups, **rules)
    certificate = certified(options.risk)
    gallery.keep(certificate)
    if certificate.threshold is not None:
        return certificate, ""
    possible = (risk for risk in OTHER_RISKS if risk > options.risk and certified(risk).threshold is not None)
    instead = next(possible, None)
    hint = f"A risk of {instead:g} could be certified" if instead else "No risk up to 0.5 could be certified"
    return certificate, (
        f"nothing can be certified: at no threshold is it shown that at most {options.risk:g} of the answers given are "
        f"wrong, so all answers are withheld at this risk. {needed(certificate)}{hint} with these "
        f"{certificate.queries} queries. A better model may help, too."
    )


def class_shares(file: Path) -> dict[str, float]:
    """Read class -> share in deployment, from a CSV with the columns `class` and `share`.

    Raises:
        DataError: a column is missing, or a share is not a number of at least 0.
    """
    columns = columns_of(file)
    if not {"class", "share"} <= set(columns):
        raise DataError(f"{file} has the columns {', '.join(columns)}; expected class and share.")
    names = class_names_of(columns["class"])
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{file} names the class {twice[0]!r} more than once; give each one share.")
    try:
        shares = {name: float(share) for name, share in zip(names, columns["share"], strict=True)}
    except ValueError as error:
        raise DataError(f"{file}: {error}; a share is a number, such as 0.2.") from error
    wrong = [name for name, share in shares.items() if not 0 <= share < np.inf]
    if wrong:
        raise DataError(f"{file}: the share of {wrong[0]!r} is {shares[wrong[0]]:g}; expected a number from 0 on.")
    return shares


def sentence(certificate: Certificate, folder: Path, gallery: Gallery, handed: int | None = None) -> str:
    """Return the promise of a certificate in words.

    Args:
        certificate: the certificate that was made last.
        folder: the folder that holds it.
        gallery: its gallery.
        handed: number of calibration queries; None if the gallery's own images calibrate.
    """
    fitted = "fitted P(right)" if certificate.p_right else "were kept to fit P(right)"
    total, counts = handed, {f"{fitted} or are copies": (handed or 0) - certificate.queries}
    if handed is None:
        total, answers = len(gallery), len(gallery.left_out.right)
        counts = {
            fitted: answers - certificate.queries,
            "are copies, were trained on, are alone in their class or (of many) were not drawn": total - answers,
        }
    others = ", ".join(f"{count} {why}" for why, count in counts.items() if count)
    among = f" (of {total}: {others})" if others else ""
    return (
        f"at most {certificate.risk:g} of the answers given are wrong, with confidence {certificate.confidence:g}. "
        f"{100 * certificate.coverage:.0f} % of the {certificate.queries} calibration queries{among} are answered; "
        f"{certificate.errors} of these {certificate.answered} answers are wrong. "
        f"{'P(right)' if certificate.p_right else certificate.score} decides which are answered. Valid for "
        f"{certificate.valid_for}; kept in {folder}"
    )


def search(options: argparse.Namespace) -> None:
    """Search the gallery of one file for the vectors of other files."""
    check_unused(options, OF_IMAGES, "files of vectors")
    place, files = Path(options.model), options.images
    stored = (place / INDEX).is_file()
    if stored:
        check_unused(options, OF_VECTORS, "a gallery that is stored already")
    gallery = Gallery.open(place) if stored else _searched(place, options)
    rules = {name: getattr(options, name) for name in ("risk", "confidence", "strangers")}
    if options.group and not options.csv and (stored or gallery.folder is None):
        raise ServingError("--group fills the column `group` of --csv (for `monitor --group group`); add --csv.")
    answers, groups = [], list[str]()
    for file in files:
        if not stored:
            check_one_model(place, file)
        read = read_vectors(file, group=options.group if options.csv else "")
        queries = read.hits or read
        groups += [] if queries.groups is None else [str(group) for group in queries.groups]
        answers += gallery.search(queries.rows, k=options.k, names=queries.names, **rules)
    tell(answers, groups or None, csv=options.csv)


def tell(answers: Sequence[Answer], groups: Sequence[str] | None, *, csv: bool) -> None:
    """Print answers for reading, or as CSV; a program that reads the CSV gets unchanged names."""
    said = as_csv(answers, groups).rstrip() if csv else as_text(answers)
    print(said if csv and not sys.stdout.isatty() else harmless(said))


def _searched(place: Path, options: argparse.Namespace) -> Gallery:
    """Return the gallery of a file: all rows, or those that `certify --group` or `--trained-on` did not hold out."""
    gallery, folder = gallery_of(read_vectors(place, label=options.label).parts[0]), gallery_folder(place)
    kept = present(folder / INDEX)
    if gallery.folder is None and kept and (options.group or options.trained_on):
        gallery = gallery_of(calibrating(place, **_columns(options))[0])
    if gallery.folder is None and kept:
        log.warning("%s was made of other vectors, or with --label, --group or --trained-on; add them here", folder)
    return gallery


def report(options: argparse.Namespace) -> None:
    """Write the page of a file of vectors."""
    check_unused(options, {"plan": None}, "files of vectors")
    file = Path(options.experiment)
    output = options.output or file.with_suffix(".html")
    check_new_file(output, is_ours)
    part, queries = calibrating(file, **_columns(options))
    warn_of_bursts(part if queries is None else queries)
    gallery = gallery_of(part)
    del part
    with tqdm(total=STEPS, disable=None, bar_format="{desc}: {percentage:3.0f} %|{bar}| {elapsed}") as bar:

        def step(text: str) -> None:
            bar.set_description(text)
            bar.update()

        page = write_page(gallery, output, file.stem, step, queries)
        bar.update(STEPS - bar.n)  # lists of an index need fewer steps
    print(page)


def migrate_gallery(options: argparse.Namespace) -> None:
    """Map the vectors of an old model to the space of a new one; the result has no certificate yet."""
    check_new_parquet(options.output)
    old, new = read_vectors(options.old, label=options.label), read_vectors(options.new)
    migrated = migrate(old, new)
    write_migrated(old, migrated, options.output)
    held = int(migrated.calibrates.sum())
    print(
        harmless(
            f"{options.output}: {len(old)} rows by {migrated.kind}. Of {held} images that the map has not seen, mapped "
            f"and new vectors have a cosine of {migrated.cosine:.3f}; asked among the other pairs, recall@1 is "
            f"{migrated.recall_mapped:.3f} by mapped vectors and {migrated.recall:.3f} by new ones. Certify it before "
            f"use, with these {held}: probmetric certify {options.output} --risk 0.05"
        )
    )


def try_letters(options: argparse.Namespace) -> None:
    """Run `probmetric try`."""
    letters, labels = example_vectors()
    queries = np.random.default_rng(0).random(len(letters)) < TRIED
    gallery = Gallery.from_vectors(letters[~queries], labels[~queries])
    certificate = gallery.certify(risk=options.risk)
    answers = gallery.search(letters[queries], k=1, risk=certificate, names=labels[queries].tolist())
    answered = [answer for answer in answers if not answer.withheld]
    if not answered:
        raise CertificateError(f"no question is answered at a risk of {options.risk:g}; try --risk 0.1.")
    shown = [answered[0], *(answer for answer in answers if answer.withheld)][:2]
    total, wrong = (sum(each.image != each.matches[0].class_name for each in part) for part in (answers, answered))
    share = wrong / len(answered)
    print(
        f"{len(gallery)} vectors of letters are the gallery; {len(answers)} others are the questions. Certified: at "
        f"most {options.risk:g} of the answers given are wrong.\n\n{as_text(shown)}\n\n"
        f"Of all {len(answers)} answers {total} are wrong, {total / len(answers):.3f}. "
        f"Of the {len(answered)} answers given {wrong} are wrong, {share:.3f} "
        f"(standard error {(share * (1 - share) / len(answered)) ** 0.5:.3f}).\n"
        "With your own vectors: probmetric certify vectors.parquet --risk 0.05"
    )
