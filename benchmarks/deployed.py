"""A gallery of letters in use: is P(right) true, do certificates hold, does the monitor notice what changes?

A trained run embeds fresh images of the test letters (`glyphs` with more images per class; 48 of each, drawn, are the
gallery). Per run:

    p_right      map fitted to each gallery image asked among the others; ECE on fresh queries of the same classes
    certificate  from 2,240 labelled queries, drawn again and again; the risk asked for is half of the error rate.
                 violated: share of draws in which more than that of the answers to all other fresh queries are wrong
    monitor      watches the certificate's doubt over 10,000 clean queries in random order, then from query 2,000 on
                 queries that are blurred (Gaussian, 2 pixels), of other classes, asked in another gallery (of other
                 letters), or in one that lost half of its letters

    python benchmarks/deployed.py glyphs/softmax/seed0 glyphs/arcface/seed0 --output benchmarks/results/deployed.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from run_certificates import rounded
from scipy.ndimage import gaussian_filter

import probmetric
from probmetric.data import load_columns, open_images, prepare_dataset
from probmetric.io import write_json
from probmetric.trust.answers import Answers, asked_in
from probmetric.trust.certificates import CertificateError
from probmetric.trust.deployed import P_RIGHT, calibration_answers, certify_record, decided_by
from probmetric.trust.drift import Monitor
from probmetric.trust.p_right import PRight, fit_p_right, p_right_metrics

PER_CLASS, GALLERY, CALIBRATION, CLEAN, BEFORE = 160, 48, 2_240, 10_000, 2_000
DRAWS, ORDERS = 200, 20


@dataclass(frozen=True)
class World:
    """What one run sees: records, name -> (N, ...), and labels (N,) of the gallery and of fresh queries."""

    gallery: dict[str, np.ndarray]
    labels: np.ndarray
    fresh: dict[str, np.ndarray]
    truth: np.ndarray
    blurred: dict[str, np.ndarray]
    others: dict[str, np.ndarray]
    other_labels: np.ndarray

    def asked(self, record: dict[str, np.ndarray], truth: np.ndarray, kept: Any = slice(None)) -> Answers:
        """The answers to queries in the gallery, or in those of its rows that are `kept`."""
        gallery = {name: values[kept] for name, values in self.gallery.items()}
        return asked_in(record, truth, gallery, self.labels[kept])


def main() -> None:
    """Judge the runs and write what was found."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_dataset("glyphs", Path(folder, "glyphs"), per_class=PER_CLASS, progress=False)
        found = {}
        for run in options.runs:
            found[run] = judged(seen_by(run, prepared))
            print(run, json.dumps(found[run]), flush=True)
    facts = {"calibration": CALIBRATION, "draws": DRAWS, "clean": CLEAN, "orders": ORDERS, "before": BEFORE}
    write_json(options.output, rounded(facts | {"runs": found}))


def seen_by(run: str, prepared: Path) -> World:
    """Embed the gallery, the fresh queries, these blurred, and images of letters that are not in the gallery."""
    model, store = probmetric.load(run), open_images(prepared)
    columns = load_columns(prepared, ["label", "split"])
    generator = np.random.default_rng(0)
    test = np.flatnonzero(columns["split"] == "test").reshape(-1, PER_CLASS)
    test = generator.permuted(test, axis=1)
    gallery, fresh = test[:, :GALLERY].ravel(), test[:, GALLERY:].ravel()
    others = generator.permutation(np.flatnonzero(columns["split"] != "test"))[:BEFORE]

    def embedded(images: list[np.ndarray]) -> dict[str, np.ndarray]:
        batch = model.embed(images)
        return {name: values.numpy() for name, values in batch.tensors().items()}

    images = [store[int(row)] for row in fresh]
    return World(
        embedded([store[int(row)] for row in gallery]),
        columns["label"][gallery] - columns["label"][gallery].min(),
        embedded(images),
        columns["label"][fresh] - columns["label"][gallery].min(),
        embedded([gaussian_filter(image, (2.0, 2.0, 0)) for image in images[:: len(images) // BEFORE]]),
        embedded([store[int(row)] for row in others]),
        columns["label"][others],
    )


def judged(world: World) -> dict[str, Any]:
    """What the module docstring says of one run."""
    among_others = calibration_answers(world.gallery, world.labels)
    fitted = fit_p_right(among_others.free, among_others.right)
    fresh = world.asked(world.fresh, world.truth)
    stated = fitted.probability(fresh.free)
    risk = float((~fresh.right).mean()) / 2
    found: dict[str, Any] = {"error_rate": 2 * risk, "p_right": p_right_metrics(stated, fresh.right)}
    found["certificate"] = {
        score: certified(world, fresh, risk, score, fitted) for score in ("own", "disagreement", P_RIGHT)
    }
    half = np.random.default_rng(1).permutation(np.unique(world.labels))[: len(np.unique(world.labels)) // 2]
    rows = np.arange(0, len(world.fresh["mean"]), len(world.fresh["mean"]) // BEFORE)
    moved = {name: values[rows] for name, values in world.fresh.items()}
    elsewhere = asked_in(moved, np.full(len(rows), -1), world.others, world.other_labels)
    changes = {
        "blur": world.asked(world.blurred, np.full(len(world.blurred["mean"]), -1)),
        "new classes": world.asked(world.others, np.full(len(world.others["mean"]), -1)),
        "other gallery": elsewhere,
        "half of the gallery": world.asked(moved, world.truth[rows], np.isin(world.labels, half)),
    }
    doubts = {name: decided_by(fitted, answers.doubts) for name, answers in changes.items()}
    found["monitor"] = watched(1.0 - stated, doubts)
    return found


def certified(world: World, fresh: Answers, risk: float, score: str, fitted: PRight) -> dict[str, float]:
    """Violations and coverage over draws of the calibration set."""
    by = fitted if score == P_RIGHT else score
    doubt = decided_by(by, {"own": fresh.own, **fresh.doubts})
    violated, coverage = [], []
    for number in range(DRAWS):
        calibration = np.isin(np.arange(len(doubt)), _drawn(len(doubt), CALIBRATION, number))
        try:
            made = certify_record(fresh.rows(calibration).tensors(), world.labels, risk=risk, score=by, seed=number)
        except CertificateError:
            continue
        answered = made.answers(doubt) & ~calibration
        violated.append(answered.any() and (~fresh.right[answered]).mean() > risk)
        coverage.append(answered.sum() / (~calibration).sum())
    return {"draws": len(violated), "violated": float(np.mean(violated)), "coverage": float(np.mean(coverage))}


def watched(clean: np.ndarray, changed: dict[str, np.ndarray]) -> dict[str, Any]:
    """False alarms among 10,000 clean queries, and how many changed queries it takes to the alarm, over orders."""
    false = 0
    delays: dict[str, list[int]] = {name: [] for name in changed}
    for number in range(ORDERS):
        order = np.random.default_rng([5, number]).permutation(len(clean))
        reference = clean[order[: len(clean) - CLEAN]][:1000]
        asked = clean[order[len(clean) - CLEAN :]]
        false += Monitor(reference, seed=number).watch(asked) is not None
        for name, doubts in changed.items():
            shuffled = np.random.default_rng([6, number]).permutation(doubts)[:1000]
            alarm = Monitor(reference, seed=number).watch(np.r_[asked[:BEFORE], shuffled])
            delays[name].append(alarm.query - BEFORE if alarm else len(shuffled) + 1)
    found = {name: {"median": float(np.median(each)), "latest": int(max(each))} for name, each in delays.items()}
    return {"false_alarms": false, "of_orders": ORDERS, "queries_to_the_alarm": found}


def _drawn(count: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng([7, seed]).permutation(count)[:size]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="finished runs on glyphs")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/deployed.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
