"""Several images of one identity: one vector each, fused, or all of them? On faces and places, frozen features.

    python benchmarks/identities.py --features FOLDER [--output benchmarks/results/identities.json]

FOLDER/faces.npz and places.npz hold vectors (N, 1280) and labels (N,) (`photos_frozen.py --features FOLDER`): people of
LFW, stretches of ten frames of the tower's walks. Identities with at least
`LEAST` images enrol with `ENROLLED` of them, drawn at random, and ask with the others. Frozen features have no
concentrations, so an image's kappa is one of two: the same for all, or that of a vMF fitted to the identity's enrolled
images, r (M - r^2) / (1 - r^2) of their mean length r (Banerjee et al. 2005).

    all      every enrolled image is a row; the nearest one answers
    mean     cosine with the mean of the unit vectors: the direction of a product of vMFs of one kappa
    fused    product of vMFs of one kappa, s = kappa sum mu, by the predictive density of the query
             log C(kappa) + log C(|s|) - log C(|s + kappa q|); kappa and T are chosen on the calibration half, by NLL
    own      the same with a kappa for each identity, fitted to its images
    medoid   the enrolled image nearest to the others
    best     the single enrolled image that is nearest to its own and farthest from other identities
    first    one image drawn at random

Per seed and rule: recall@1, NLL of softmax(score / T) over the identities (T chosen on half of the queries, told on the
other), and the share answered by a certificate of `RISK`, calibrated on the first half and applied to the second, with
its share of wrong answers there. The doubt is minus the gap of the two best identities.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax

from probmetric import trust
from probmetric.directional import log_normalizer
from probmetric.io import write_json
from probmetric.metrics.arrays import normalized

LEAST, ENROLLED, RISK, SEEDS = 6, 4, 0.5, 5
TEMPERATURES = np.geomspace(0.003, 30.0, 20)
KAPPAS = (300.0, 1000.0, 3000.0, 10_000.0)
RULES = ("all", "mean", "fused", "own", "medoid", "best", "first")


def concentration(sums: np.ndarray, count: int, dim: int) -> np.ndarray:
    """Return kappa (C,) of identities whose `count` unit vectors have the `sums` (C, M)."""
    length = np.minimum(np.linalg.norm(sums, axis=1) / count, 0.999)
    return np.asarray(length * (dim - length**2) / (1 - length**2))


def predictive(sums: np.ndarray, queries: np.ndarray, kappa: np.ndarray) -> np.ndarray:
    """Return the log density (Q, C) of `queries` (Q, M) under products of vMFs of `kappa` (C,) with `sums` (C, M)."""
    dim, products = sums.shape[1], queries @ sums.T
    lengths = np.linalg.norm(sums, axis=1)
    joint = kappa * np.sqrt(lengths**2 + 1 + 2 * products)
    normalizers = (log_normalizer(torch.from_numpy(values), dim).numpy() for values in (kappa, kappa * lengths, joint))
    alone, enrolled, with_query = normalizers
    return np.asarray(alone + enrolled - with_query)


def scores(rule: str, enrolled: np.ndarray, queries: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the score (Q, C) of every identity for `queries` (Q, M); `enrolled` (C, K, M) are unit vectors."""
    classes, count, dim = enrolled.shape
    sums = enrolled.sum(axis=1)
    if rule == "all":
        return np.asarray((queries @ enrolled.reshape(-1, dim).T).reshape(-1, classes, count).max(axis=2))
    if rule == "mean":
        return np.asarray(queries @ normalized(sums).T)
    if rule == "own":
        return predictive(sums, queries, concentration(sums, count, dim))
    within = np.einsum("ckm,clm->ckl", enrolled, enrolled)
    if rule == "medoid":
        place = within.sum(axis=2).argmax(axis=1)
    elif rule == "best":
        nearest_other = np.full((classes, count), -1.0)
        for number in range(classes):
            others = np.delete(np.arange(classes), number)
            nearest_other[number] = (enrolled[number] @ enrolled[others].reshape(-1, dim).T).max(axis=1)
        np.einsum("ckk->ck", within)[:] = np.nan
        place = (np.nanmean(within, axis=2) - nearest_other).argmax(axis=1)
    else:
        place = generator.integers(0, count, classes)
    return np.asarray(queries @ enrolled[np.arange(classes), place].T)


def nll(logits: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean of -log softmax of `logits` (Q, C) at the identities `truth` (Q,)."""
    return float(-log_softmax(logits, axis=1)[np.arange(len(truth)), truth].mean())


def tempered(scores: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Return the least NLL of `scores` (Q, C) over `TEMPERATURES`, and the temperature that has it."""
    return min((nll(scores / one, truth), one) for one in TEMPERATURES)


def judged(values: np.ndarray, truth: np.ndarray, calibrates: np.ndarray) -> dict[str, float]:
    """Return the three measures of scores (Q, C) for queries of the identities `truth` (Q,)."""
    two = -np.partition(-values, 1, axis=1)[:, :2]
    right, doubt = values.argmax(axis=1) == truth, two[:, 1] - two[:, 0]

    best = tempered(values[calibrates], truth[calibrates])[1]
    certificate = trust.certify(doubt[calibrates], right[calibrates], risk=RISK)
    answered = certificate.answers(doubt[~calibrates])
    wrong = float((~right[~calibrates][answered]).mean()) if answered.any() else 0.0
    return {
        "recall": float(right.mean()),
        "nll": nll(values[~calibrates] / best, truth[~calibrates]),
        "answered": answered.mean(),
        "wrong": wrong,
    }


def measured(rows: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return mean and deviation over the seeds of every rule's measures, from unit rows (N, M) with labels (N,)."""
    kept = np.flatnonzero(np.bincount(labels) >= LEAST)
    made: dict[str, list[dict[str, float]]] = {rule: [] for rule in RULES}
    asked, chosen = 0, list[float]()
    for seed in range(SEEDS):
        generator = np.random.default_rng(seed)
        drawn = [generator.permutation(np.flatnonzero(labels == label)) for label in kept]
        enrolled = np.stack([rows[images[:ENROLLED]] for images in drawn])
        queries = np.concatenate([images[ENROLLED:] for images in drawn])
        truth = np.repeat(np.arange(len(kept)), [len(images) - ENROLLED for images in drawn])
        calibrates = generator.random(len(truth)) < 0.5
        asked = len(truth)
        for rule in RULES:
            if rule == "fused":
                sums, asking = enrolled.sum(axis=1), rows[queries]
                tried = [predictive(sums, asking, np.full(len(kept), kappa)) for kappa in KAPPAS]
                best = int(np.argmin([tempered(each[calibrates], truth[calibrates])[0] for each in tried]))
                values = tried[best]
                chosen.append(KAPPAS[best])
            else:
                values = scores(rule, enrolled, rows[queries], generator)
            made[rule].append(judged(values, truth, calibrates))
    results: dict[str, Any] = {}
    print(f"{len(kept)} identities, {asked} queries\nrule | recall@1 | NLL | answered at {RISK:g} | wrong of those")
    for rule, each in made.items():
        table = {name: [one[name] for one in each] for name in each[0]}
        results[rule] = {name: [float(np.mean(v)), float(np.std(v, ddof=1))] for name, v in table.items()}
        print(
            " | ".join([rule, *(f"{mean:.3f} +- {spread:.3f}" for mean, spread in results[rule].values())]), flush=True
        )
    facts = {"identities": len(kept), "queries": asked, "enrolled": ENROLLED, "risk": RISK, "seeds": SEEDS}
    return facts | {"kappas": chosen, "mean and deviation": results}


def main() -> None:
    """Print the tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, default=Path("features"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/identities.json"))
    options = parser.parse_args()
    results = {}
    for name in ("faces", "places"):
        with np.load(options.features / f"{name}.npz") as stored:
            results[name] = measured(normalized(stored["vectors"].astype(np.float32)), stored["labels"])
    write_json(options.output, results)


if __name__ == "__main__":
    main()
