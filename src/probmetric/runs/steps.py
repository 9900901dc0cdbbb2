"""Make the steps of one run in one process: train -> fit -> embed -> evaluate; skip those whose record fits.

Each step reads the files of the step before it and writes its own files whole (`probmetric.runs.folder`), its record
last (`probmetric.runs.made`). After a kill the same call continues with the interrupted step, training from its
checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric import __version__
from probmetric.data.manifest import SUMMARY, DataError, load_manifest, read_digest, read_summary, refusing
from probmetric.io import content_digest, json_in, present, write_text
from probmetric.launch import ALONE, Place
from probmetric.runs.folder import RERUN, RunFolder, Step
from probmetric.runs.identity import Ingredients, ingredients
from probmetric.runs.made import Judge, forget, record, restore_metrics
from probmetric.runs.names import FEATURES, RESULTS, STATE
from probmetric.runs.plan import Run, RunPlan

if TYPE_CHECKING:
    from probmetric.trust.certificates import Certificate
    from probmetric.trust.deployed import Unit

log = logging.getLogger(__name__)
ENOUGH_TO_FIT = 200  # a map of five scores fitted to 52 answers put wrong answers first: AUROC .35


def unfinished(run: Run, until: Step = "evaluate") -> tuple[Step, ...]:
    """Return the steps of `run` that must be made: the first whose record does not fit, and all after it.

    If only metrics.json is lost, it is written again from the record of the evaluation.
    """
    judge, folder = Judge({run.name: run}), RunFolder.named(run.name)
    steps = run.steps_until(until)

    def lacks(step: Step) -> bool:
        return not all(file.exists() for file in folder.step_files(step))

    first = next((n for n, step in enumerate(steps) if not judge.verdict(run.name, step).usable), len(steps))
    if first == len(steps) and steps and steps[-1] == "evaluate" and not folder.finished:
        restore_metrics(run.name)
    if first == len(steps) and steps and lacks(steps[-1]):
        first -= 1
    while 0 < first < len(steps) and lacks(steps[first - 1]):
        first -= 1
    return tuple(steps[first:])


def _check_data(folders: Sequence[Path]) -> None:
    sizes = []
    for folder in folders:
        read_digest(folder)
        sizes.append(read_summary(folder).get("dimensions") if present(folder / SUMMARY) else None)
        if sizes[-1] != sizes[0]:
            raise DataError(
                f"{folder} holds {_kind(sizes[-1])}, {folders[0]} {_kind(sizes[0])}; no network reads both. Leave one "
                "of them out of `ood` in params.yaml."
            )


def _kind(size: int | None) -> str:
    return f"vectors of {size} dimensions" if size else "images"


def make(plan: RunPlan, steps: Sequence[Step], *, threads: int = 1, place: Place = ALONE) -> None:
    """Make `steps` of a run, one after the other.

    Args:
        plan: the run.
        steps: the steps to make (`unfinished`).
        threads: CPU threads of this process.
        place: number of this process among those that train and embed together; the first one does all else.

    Raises:
        DataError: a dataset that one of the steps reads is not prepared, or holds vectors of another length than the
            first. This is checked before the first step begins.
    """
    names = plan.run.data[: None if steps[-1] in ("embed", "evaluate") else 1]
    _check_data([Path(plan.run.settings.prepared) / name for name in names])
    for step in steps:
        started = time.perf_counter()
        if step == "train":
            train(plan, threads=threads, place=place)
        elif step == "embed":
            embed(plan, threads=threads, place=place)
        elif place.rank == 0:
            if step == "fit":
                fit(plan, threads=threads)
            else:
                evaluate(plan)
        log.info("%s of %s: %.1f s", step, plan.run.name, time.perf_counter() - started)


@contextlib.contextmanager
def _recorded(plan: RunPlan, step: Step, *, first: bool = True) -> Iterator[Ingredients]:
    """Wrap a step: remove its old record before its files change, and write the new one when they are complete."""
    made_of = ingredients(plan.run, step, Judge({plan.run.name: plan.run}).upstream(plan.run, step))
    if first:
        forget(plan.run.name, step)
    yield made_of
    if first:
        record(plan.run.name, made_of, release=__version__)


def train(plan: RunPlan, *, threads: int = 1, place: Place = ALONE) -> None:
    """Train the encoder of the run into `results/<run>`; continue from `state/training/<run>` after an interruption.

    If the plan's store is the address of an MLflow server, the curves appear there while the run trains. `place` is the
    number of this process among those that train together.
    """
    from probmetric.tracking import live_curves
    from probmetric.training.processes import joined
    from probmetric.training.run import train_run

    run, settings = plan.run.name, plan.run.settings.encoder()
    with (
        _recorded(plan, "train", first=place.rank == 0) as made_of,
        joined(place) as processes,
        live_curves(plan.store if processes.first else "", run) as on_epoch,
    ):
        train_run(
            settings,
            prepared_folder=settings.data_folder,
            run_folder=RESULTS / run,
            state_folder=STATE / run,
            threads=threads,
            on_epoch=on_epoch,
            processes=processes,
            code=made_of.code,
            features=FEATURES,
        )


def fit(plan: RunPlan, *, threads: int = 1) -> None:
    """Fit the run's uncertainty on the training images and write its posterior."""
    import torch

    from probmetric.runs.embed import fit_posterior

    torch.set_num_threads(threads)
    with _recorded(plan, "fit"):
        fit_posterior(plan.run)


def embed(plan: RunPlan, *, threads: int = 1, place: Place = ALONE) -> None:
    """Embed validation, test and OOD images with the selected weights, and test images with the last ones.

    The time for the test images, after the validation images as a warm-up, is stored beside them. Each of several
    processes embeds its share of the batches; the first one (`place`) writes them all.
    """
    import torch

    from probmetric.runs.embed import embed_splits

    torch.set_num_threads(threads)
    with _recorded(plan, "embed", first=place.rank == 0):
        embed_splits(plan.run, place)


def evaluate(plan: RunPlan) -> None:
    """Measure the run's embeddings; write metrics, curves, the record, and a certificate if one can be made."""
    from probmetric.runs.evaluate import ImageFacts, evaluate_run, run_answers, training_metrics
    from probmetric.trust.answers import p_right_of

    run, settings, folder = plan.run, plan.run.settings, RunFolder.named(plan.run.name)
    with _recorded(plan, "evaluate"):
        facts = ImageFacts.of(settings.data_folder)
        answers = run_answers(folder, settings.evaluation.ks, facts)
        metrics, curves = evaluate_run(folder.path, settings.evaluation, facts, answers=answers)
        if settings.evaluation.proxies or settings.evaluation.training_images:
            from probmetric.runs.embed import embed_training_images

            values, spectrum = training_metrics(settings, *embed_training_images(run))
            metrics |= values
            curves |= spectrum
        fitted = p_right_of(answers)
        folder.write_matches(
            {where: each.tensors() for where, each in answers.items()},
            {"p_right": json.dumps(fitted.plain())} if fitted else {},
        )
        for file in (folder.certificate_file, folder.certificate_page):
            file.unlink(missing_ok=True)
        if "test" in answers:
            certify_smallest(run.name)
        folder.write_evaluation(metrics, curves, _full_record(run, plan.plugins))


def _full_record(run: Run, plugins: Sequence[str]) -> dict[str, Any]:
    """Return the content of run.yaml: how the encoder was made, and the run's own settings."""
    whose: dict[str, Any] = {"run": run.name, "encoder": run.encoder}
    if len(run.encoders) > 1:
        whose["members"] = list(run.encoders)
    if plugins:
        whose["plugins"] = list(plugins)
    return RunFolder.named(run.encoder).encoder | whose | {"settings": run.settings.plain()}


def certify_smallest(run: str) -> None:
    """Certify the smallest possible of `RISKS`: start with the largest, go on to a smaller one after each success.

    The smallest is chosen after all tries, so each risk counts as one of as many tries. No certificate is written if
    there are too few test images, or all answers are right or all wrong.
    """
    from probmetric.trust.certificates import CONFIDENCE, RISKS, CertificateError

    made = None
    for risk in RISKS:
        try:
            tried = _certificate(run, risk, CONFIDENCE, tries=len(RISKS))
        except CertificateError:
            break
        if made is None or tried.threshold is not None:
            made = tried
        if tried.threshold is None:
            break
    if made:
        _keep(run, made)


def certify(run: str, *, risk: float, confidence: float, score: str = "", unit: Unit = "auto", group: str = "") -> Path:
    """Certify the answers of a run's test gallery; write `certificate.json` and, in words, `certificate.md`.

    Each test image is asked among the others. By default P(right) decides, by the map fitted on the validation
    classes; if these have too few answers, the disagreement of the nearest images decides. If `group` names a column of
    the prepared dataset, its groups are the unit of sampling.

    Raises:
        CertificateError: there are too few images for a certificate; the message says how many are needed.
        DataError: the dataset has no such column, or no test images.
        FileError: the run is not evaluated.
    """
    return _keep(run, _certificate(run, risk, confidence, score, group, unit=unit))


def _certificate(
    run: str, risk: float, confidence: float, score: str = "", group: str = "", **options: Any
) -> Certificate:
    """Return the certificate of a run's answers; arguments as for `certify`, options as for `certify_record`."""
    from probmetric.trust.deployed import certify_record
    from probmetric.trust.p_right import PRight

    folder = RunFolder.named(run)
    matches, metadata = folder.matches()
    if "test" not in matches:
        raise DataError(f"{run} has no answers to test images: its dataset has none, or too few of them.")
    record = {name: values[matches["test"]["asked"]] for name, values in matches["test"].items()}
    labels = folder.embeddings("test")["label"]
    gallery = content_digest(folder.embeddings_file("test"))
    by: str | PRight = score or "disagreement"
    if score in ("", "p_right") and "p_right" in metadata:
        with refusing(f"{folder.matches_file} is damaged", RERUN, TypeError, ValueError):
            fitted = PRight.of(json_in(metadata["p_right"], folder.matches_file, RERUN, dict[str, Any]))
        by = fitted if score or fitted.answers >= ENOUGH_TO_FIT else by
    if group:
        options["groups"] = _query_groups(folder, group)[matches["test"]["asked"]]
    return certify_record(
        record,
        labels,
        risk=risk,
        confidence=confidence,
        score=by,
        gallery=gallery,
        weights=content_digest(folder.weights_file()) if folder.trained else "",
        calibration=gallery,
        **options,
    )


def _query_groups(folder: RunFolder, column: str) -> np.ndarray:
    """Return the group (Q,) of each query among a run's test images, from a column of its prepared dataset."""
    from probmetric.runs.evaluate import ImageFacts

    prepared = str(folder.find("settings.prepared", default="data/prepared"))
    data = folder.path.resolve().parents[3] / prepared / folder.key.data
    listed = load_manifest(data)
    if column not in listed:
        raise DataError(f"{data} has no column {column!r}; it has {', '.join(listed.columns)}.")
    groups, test = listed[column][listed["split"] == "test"].to_numpy(), folder.embeddings("test")
    if len(groups) != len(test["label"]):
        raise DataError(
            f"{data} has {len(groups)} test images, the run embedded {len(test['label'])}; groups cannot be told."
        )
    return groups[ImageFacts.of(data).asked(test).queries]


def _keep(run: str, certificate: Certificate) -> Path:
    from probmetric.trust.certificate_page import page

    folder = RunFolder.named(run)
    certificate.save(folder.certificate_file)
    write_text(folder.certificate_page, page(certificate, run))
    return folder.certificate_page
