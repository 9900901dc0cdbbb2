"""The steps of one run in one process: train -> fit -> embed -> evaluate, each skipped where its record fits.

Each step reads what the step before it wrote and writes its own files whole (`probmetric.runs.folder`), its record last
(`probmetric.runs.made`). After a kill the same call goes on with the step it was in, training from its checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric import __version__
from probmetric.config import ConfigError, RunSettings
from probmetric.launch import ALONE, Place
from probmetric.runs.folder import STEPS, RunFolder, Step
from probmetric.runs.identity import Ingredients, ingredients
from probmetric.runs.made import Judge, forget, record, restore_metrics
from probmetric.runs.names import RESULTS, STATE
from probmetric.runs.plan import Run, RunPlan

if TYPE_CHECKING:
    from probmetric.trust.deployed import Unit

log = logging.getLogger(__name__)
DISTORTIONS = ("warp", "noise", "blur", "occlusion", "distortion")  # columns of a manifest: strengths, 0 for none


def unfinished(run: Run, until: Step = "evaluate") -> tuple[Step, ...]:
    """Return the steps of `run` that are to be made: the first whose record does not fit, and all that follow it.

    A lost metrics.json alone is written again from the record of the evaluation.
    """
    judge, folder = Judge({run.name: run}), RunFolder.named(run.name)
    steps = [step for step in run.steps if STEPS.index(step) <= STEPS.index(until)]

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


def make(plan: RunPlan, steps: Sequence[Step], *, threads: int = 1, place: Place = ALONE) -> None:
    """Make `steps` of a run, one after the other.

    Args:
        plan: the run.
        steps: those to be made (`unfinished`).
        threads: CPU threads of this process.
        place: which of the processes that train and embed together this one is; the first one does all else.
    """
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
    """Wrap a step: its old record goes before its files change, the new one comes when they are whole."""
    made_of = ingredients(plan.run, step, Judge({plan.run.name: plan.run}).upstream(plan.run, step))
    if first:
        forget(plan.run.name, step)
    yield made_of
    if first:
        record(plan.run.name, made_of, release=__version__)


def train(plan: RunPlan, *, threads: int = 1, place: Place = ALONE) -> None:
    """Train the encoder of the run into `results/<run>`, going on from `state/training/<run>` if it was interrupted.

    If the plan's store is the address of an MLflow server, the curves appear there while the run trains. `place` says
    which of several processes that train it together this one is.
    """
    from probmetric.runs.embed import prepared_folder
    from probmetric.tracking import live_curves
    from probmetric.training import train_run
    from probmetric.training.processes import joined

    run, settings = plan.run.name, plan.run.settings.encoder()
    with (
        _recorded(plan, "train", first=place.rank == 0) as made_of,
        joined(place) as processes,
        live_curves(plan.store if processes.first else "", run) as on_epoch,
    ):
        train_run(
            settings,
            prepared_folder=prepared_folder(settings),
            run_folder=RESULTS / run,
            state_folder=STATE / run,
            threads=threads,
            on_epoch=on_epoch,
            processes=processes,
            code=made_of.code,
        )


def fit(plan: RunPlan, *, threads: int = 1) -> None:
    """Fit the run's uncertainty on the training images and write its posterior."""
    import torch

    from probmetric.runs.embed import fit_uncertainty, load_trained
    from probmetric.training import claim_device

    run, settings = plan.run, plan.run.settings
    torch.set_num_threads(threads)
    with _recorded(plan, "fit"):
        with claim_device("auto") as device:
            posterior = fit_uncertainty(settings, load_trained(run.encoder, settings, device, "selected"), device)
        RunFolder.named(run.name).write_posterior(posterior, settings.uncertainty.name)


def embed(plan: RunPlan, *, threads: int = 1, place: Place = ALONE) -> None:
    """Embed validation, test and OOD images with the selected weights, and test images with the last ones.

    What the test images took, after the validation images have warmed everything up, is kept beside them.
    Of several processes each embeds its share of the batches; the first one (`place`) writes them all.
    """
    import torch

    torch.set_num_threads(threads)
    with _recorded(plan, "embed", first=place.rank == 0):
        _embed_splits(plan.run, place)


def _embed_splits(planned: Run, place: Place) -> None:
    from probmetric.runs.embed import Embedder, prepared_folder
    from probmetric.training import claim_device
    from probmetric.training.processes import joined

    run, encoder_run, settings = planned.name, planned.encoder, planned.settings
    data = prepared_folder(settings)
    with joined(place) as processes, claim_device("auto") as device:
        selected = Embedder(run, encoder_run, settings, device, processes, which="selected")
        selected.write("val", [(data, "val")])
        taken, images = selected.write("test", [(data, "test")])
        selected.write("ood", [(Path(settings.prepared) / name, "test") for name in settings.ood])
        last = Embedder(run, encoder_run, settings, device, processes, which="last", plain=True)
        last.write("last", [(data, "test")])
        if processes.first:
            timing = {"embedding/test_seconds": taken, "embedding/images_per_second": images / taken}
            RunFolder.named(run).write_timing(timing)


def evaluate(plan: RunPlan) -> None:
    """Measure the run's embeddings; write metrics, curves and the run's full record."""
    with _recorded(plan, "evaluate"):
        _evaluate(plan.run, plan.plugins)


def _evaluate(planned: Run, plugins: Sequence[str]) -> None:
    from probmetric.runs.embed import prepared_folder
    from probmetric.runs.evaluate import Known, evaluate_run
    from probmetric.runs.evaluate_answers import run_answers
    from probmetric.trust.answers import p_right_of

    run, encoder_run, settings = planned.name, planned.encoder, planned.settings
    folder, chosen = RunFolder.named(run), settings.evaluation
    known = _known(prepared_folder(settings))
    answers = {} if "places" in known else run_answers(folder, chosen.ks)
    metrics, curves = evaluate_run(folder.path, chosen, Known(**known), answers=answers)
    if chosen.proxies or chosen.training_images:
        found, spectrum = _training_metrics(run, encoder_run, settings)
        metrics |= found
        curves |= spectrum
    whose: dict[str, Any] = {"run": run, "encoder": encoder_run}
    if len(planned.encoders) > 1:
        whose["members"] = list(planned.encoders)
    if plugins:
        whose["plugins"] = list(plugins)
    record = RunFolder.named(encoder_run).encoder | whose | {"settings": settings.plain()}
    fitted = p_right_of(answers)
    folder.write_matches(
        {where: found.tensors() for where, found in answers.items()},
        {"p_right": json.dumps(fitted.plain())} if fitted else {},
    )
    folder.write_evaluation(metrics, curves, record)


def certify(run: str, *, risk: float, confidence: float, score: str = "", unit: Unit = "auto") -> Path:
    """Certify the answers of a run's test gallery: writes `certificate.json` and, in words, `certificate.md`.

    Each test image is asked among the others; P(right) is by the map fitted on the validation classes.

    Raises:
        CertificateError: nothing can be certified with so many images; says what is needed.
        FileError: the run is not evaluated.
    """
    from probmetric.io import content_digest, write_text
    from probmetric.trust.certificate_page import page
    from probmetric.trust.deployed import certify_record
    from probmetric.trust.p_right import PRight

    folder = RunFolder.named(run)
    matches, metadata = folder.matches()
    record = {name: values[matches["test"]["asked"]] for name, values in matches["test"].items()}
    folder.embeddings("test")  # damaged ones have the digest of whole ones
    gallery = content_digest(folder.embeddings_file("test"))
    by: str | PRight = score or "disagreement"
    if score in ("", "p_right") and "p_right" in metadata:
        by = PRight.of(json.loads(metadata["p_right"]))
    made = certify_record(
        record,
        matches["test"]["label"],
        risk=risk,
        confidence=confidence,
        score=by,
        unit=unit,
        gallery=gallery,
        weights=content_digest(folder.weights_file()) if folder.trained else "",
        calibration=gallery,
    )
    made.save(folder.certificate_file)
    write_text(folder.certificate_page, page(made, run))
    return folder.certificate_page


def _training_metrics(
    run: str, encoder_run: str, settings: RunSettings
) -> tuple[dict[str, float], dict[str, dict[str, list[float]]]]:
    """What is measured on the training images, and curves.

    `train/structure/...` with the curve `train/singular_values` (papers 000 and 001); `structure/proxy_w1` and
    `proxy_w2`, how near the loss's proxies are (paper 004).
    """
    import torch

    from probmetric.metrics import proxy_transport
    from probmetric.metrics.structure import singular_values, structure_metrics
    from probmetric.runs.embed import Embedder, prepared_folder
    from probmetric.training import claim_device
    from probmetric.training.processes import ALONE

    with claim_device("auto") as device, torch.inference_mode():
        embedder = Embedder(run, encoder_run, settings, device, ALONE, which="selected", plain=True)
        images = embedder.images(prepared_folder(settings), "train")
        rows = replace(embedder.predictor, loss=None)(embedder.batches(images)).mean
        found = embedder.loss.class_proxies() if embedder.loss is not None else None
    labels = torch.unique(torch.from_numpy(images.labels), return_inverse=True)[1]
    metrics: dict[str, float] = {}
    curves: dict[str, dict[str, list[float]]] = {}
    if settings.evaluation.training_images:
        curves["train/singular_values"] = {"value": singular_values(rows.numpy()).tolist()}
        structure = structure_metrics(rows.numpy(), labels.numpy())
        metrics |= {f"train/structure/{name}": value for name, value in structure.items()}
    if settings.evaluation.proxies:
        if found is None:
            raise ConfigError(
                f"evaluation.proxies: the loss of {encoder_run} has no proxies; leave the setting out for this method."
            )
        proxies, owners = (tensor.cpu() for tensor in found)
        distances = proxy_transport(rows, labels, proxies, owners)
        metrics |= {f"structure/proxy_{name}": value for name, value in distances.items()}
    return metrics, curves


def _known(folder: Path) -> dict[str, Any]:
    """What a prepared dataset's manifest tells evaluation besides labels: distortions, pairs to verify, places."""
    import numpy as np

    from probmetric.data import verify_digest
    from probmetric.data.exact import split_posterior
    from probmetric.data.manifest import read_table, values_of
    from probmetric.data.places import COLUMNS
    from probmetric.metrics.verification import Pairs
    from probmetric.runs.evaluate_places import Places

    verify_digest(folder)
    table, metadata = read_table(folder, ["index"], optional=(*DISTORTIONS, "true_probability", *COLUMNS))
    known: dict[str, Any] = {}
    strengths = {name: values_of(table, name) for name in DISTORTIONS if name in table.column_names}
    known["distortions"] = {name: values for name, values in strengths.items() if values.dtype.kind == "f"}
    if "true_probability" in table.column_names:
        known["posterior"] = functools.partial(split_posterior, folder)
    if set(COLUMNS) <= set(table.column_names):
        known["places"] = Places({name: values_of(table, name) for name in COLUMNS})
    if metadata.get("pairs"):
        pairs = np.array(metadata["pairs"], dtype=np.int64)
        known["pairs"] = Pairs(pairs[:, :2], pairs[:, 2].astype(bool))
    return known
