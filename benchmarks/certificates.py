"""Are five promises kept, and what do they answer? 1,000 calibration sets from each of six data sets.

    birds, cars, faces   frozen features of photographs, FOLDER/<name>.npz with vectors (N, M) and labels (N,)
    letters              frozen features that come with the package (`probmetric try`)
    digits               pixels of scikit-learn's digits, with noise
    simulated            doubts uniform, P(wrong | doubt) = .6 doubt^2

Half of the images of each class are the gallery, the others ask. The answers to all of them are the population; a
calibration set is `CALIBRATION` answers drawn from it with replacement, so that the truth is known exactly. Pairs,
strangers and batches are judged on ten times as many sets.

    answers    risk = half of the share of wrong answers; violated: share of calibration sets whose threshold lets
               through more. Coverage beside the oracle's (the largest threshold that keeps the risk in the population)
               and, on the same sets, that of a betting test (Waudby-Smith and Ramdas 2023, as in RCPS), of learn-then-
               test with Bonferroni's correction over 100 thresholds of a pilot (Angelopoulos et al. 2021) and of
               selection with guaranteed risk (Geifman and El-Yaniv 2017)
    pairs      at most 2 % of pairs of different classes are accepted
    strangers  at most 5 % of queries of a quarter of the classes, which are not in the gallery, are answered
    batch      of the answers accepted among 100 at most `risk` are wrong on average: the mean is printed
    sets       the right class is missing in at most 10 %, on average

    python benchmarks/certificates.py --features FOLDER --splits 1000 --output benchmarks/results/certificates.json
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from probmetric import trust
from probmetric.io import write_json
from probmetric.retrieval import match_record
from probmetric.trust.certificates import EVERYTHING, CertificateError, least_tested, upper_bound

CALIBRATION, BATCH, CONFIDENCE, FALSE_ACCEPT, STRANGERS, MISS = 400, 100, 0.9, 0.02, 0.05, 0.1
TIMES = 10  # pairs may break their promise in .097 of the sets, strangers in .099: 1,000 sets cannot tell that from .1


@dataclass(frozen=True)
class Population:
    """Answers to all queries of a data set, of which calibration sets are drawn."""

    doubt: np.ndarray
    right: np.ndarray
    stranger: np.ndarray  # doubts of answers to strangers
    impostor: np.ndarray  # similarities of pairs of different classes
    genuine: np.ndarray
    class_doubt: np.ndarray
    label: np.ndarray


def population(vectors: np.ndarray, labels: np.ndarray, seed: int = 0) -> Population:
    """Ask half of the images of each class in the other half; without strangers, then with."""
    generator = np.random.default_rng(seed)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = generator.permutation(len(labels))
    vectors, labels = vectors[order].astype(np.float32), labels[order]
    counts = np.bincount(labels)
    place = np.empty(len(labels), dtype=int)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        place[rows] = np.arange(len(rows))
    kept = counts[labels] >= 2
    gallery, asks = kept & (place % 2 == 0), kept & (place % 2 == 1)
    record = match_record(vectors[asks], vectors[gallery], labels[gallery])
    classes, truth = np.unique(labels[gallery], return_inverse=True)
    nearest = np.full((asks.sum(), len(classes)), -1.0, dtype=np.float32)
    for number in range(len(classes)):
        nearest[:, number] = (vectors[asks] @ vectors[gallery][truth == number].T).max(axis=1)
    away = generator.permutation(classes)[: len(classes) // 4]
    strange, stays = np.isin(labels[asks], away), ~np.isin(labels[gallery], away)
    asked_in_less = match_record(vectors[asks][strange], vectors[gallery][stays], labels[gallery][stays])
    pairs = generator.integers(0, len(labels), size=(100_000, 2))
    similarity = np.einsum("ij,ij->i", vectors[pairs[:, 0]], vectors[pairs[:, 1]])
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    return Population(
        -record["gap"],
        record["nearest_class"] == labels[asks],
        -asked_in_less["gap"],
        similarity[~same],
        similarity[same & (pairs[:, 0] != pairs[:, 1])],
        nearest.max(axis=1, keepdims=True) - nearest,
        np.searchsorted(classes, labels[asks]),
    )


def simulated() -> Population:
    """A population of 20,000 answers with known law."""
    generator = np.random.default_rng(0)
    doubt = generator.random(20_000)
    label = generator.integers(0, 5, 20_000)
    class_doubt = generator.random((20_000, 5)) + 0.5 * (np.arange(5) != label[:, None])
    right = generator.random(20_000) >= 0.6 * doubt**2
    normal = generator.normal(size=(2, 20_000))
    return Population(doubt, right, 0.4 + generator.random(20_000), normal[0], normal[1] + 3, class_doubt, label)


def data_sets(folder: Path) -> dict[str, Population | str]:
    """Name -> population, or why it is absent."""
    sets: dict[str, Population | str] = {}
    for name in ("birds", "cars", "faces"):
        path = folder / f"{name}.npz"
        if path.is_file():
            with np.load(path) as stored:
                sets[name] = population(stored["vectors"], stored["labels"])
        else:
            sets[name] = f"absent: {path.name} is not in the folder of --features"
    sets["letters"] = population(*letters_of_the_package())
    digits, labels = load_digits(return_X_y=True)
    noise = np.random.default_rng(0).normal(scale=6.0, size=digits.shape)
    sets["digits"] = population(digits + noise, labels)
    sets["simulated"] = simulated()
    return sets


def letters_of_the_package() -> tuple[np.ndarray, np.ndarray]:
    """Return vectors (N, M) and labels (N,) of `probmetric try`."""
    with as_file(files("probmetric.serving") / "letters.npz") as path, np.load(path) as stored:
        return stored["vector"].astype(np.float32), np.unique(stored["label"], return_inverse=True)[1]


# published procedures, each a threshold from doubts (N,) and errors (N,)


def betting(doubt: np.ndarray, wrong: np.ndarray, risk: float, seed: int) -> float:
    """Thresholds of a pilot of a tenth, upwards from the fewest answers that can pass, until a wager is not won."""
    order = np.random.default_rng(seed).permutation(len(doubt))
    pilot, rest = order[: len(doubt) // 10], order[len(doubt) // 10 :]
    enough = 1.5 * least_tested(risk, CONFIDENCE) / len(rest)
    best, goal = -np.inf, np.log(1 / (1 - CONFIDENCE))
    for threshold in np.unique(np.quantile(doubt[pilot], np.linspace(min(enough, 1), 1, 20))):
        errors = wrong[rest][doubt[rest] <= threshold].astype(float)
        count = np.arange(1, len(errors) + 1)
        mean = (0.5 + np.cumsum(errors)) / (count + 1)
        spread = (0.25 + np.cumsum((errors - mean) ** 2)) / (count + 1)
        spread = np.append(0.25, spread[:-1])  # known before each wager
        stake = np.minimum(np.sqrt(2 * goal / (max(len(errors), 1) * spread)), 0.75 / (1 - risk))
        if not len(errors) or np.cumsum(np.log1p(stake * (risk - errors))).max() < goal:
            break
        best = float(threshold)
    return best


def bonferroni(doubt: np.ndarray, wrong: np.ndarray, risk: float, seed: int) -> float:
    """Learn then test: 100 quantiles of a pilot of a tenth, binomial tests at delta / 100 on the rest."""
    pilot = np.random.default_rng(seed).permutation(len(doubt)) < len(doubt) // 10
    best = -np.inf
    for threshold in np.quantile(doubt[pilot], np.linspace(0.01, 1, 100)):
        given = ~pilot & (doubt <= threshold)
        if upper_bound(int(wrong[given].sum()), int(given.sum()), 1 - (1 - CONFIDENCE) / 100) <= risk:
            best = max(best, threshold)
    return best


def guaranteed(doubt: np.ndarray, wrong: np.ndarray, risk: float, seed: int) -> float:
    """SGR: bisection over ranks, every bound at delta / log2 N."""
    order = np.argsort(doubt)
    errors = np.cumsum(wrong[order])
    steps = int(np.ceil(np.log2(len(doubt))))
    low, high, best = 0, len(doubt) - 1, -np.inf
    for _ in range(steps):
        middle = (low + high + 1) // 2
        if upper_bound(int(errors[middle]), middle + 1, 1 - (1 - CONFIDENCE) / steps) <= risk:
            best, low = max(best, doubt[order[middle]]), middle
        else:
            high = middle
    return best


PUBLISHED = {"betting": betting, "bonferroni": bonferroni, "guaranteed": guaranteed}


def judged(data: Population, splits: int) -> dict[str, Any]:
    """Return what the table shows of one data set."""
    wrong = ~data.right
    risk = float(wrong.mean()) / 2
    order = np.argsort(data.doubt, kind="stable")
    kept = np.cumsum(wrong[order]) <= risk * np.arange(1, len(order) + 1)
    oracle = float((np.flatnonzero(kept)[-1] + 1) / len(order)) if kept.any() else 0.0
    rows: dict[str, list[Any]] = {name: [] for name in ("certify", *PUBLISHED, "pairs", "strangers", "batch", "sets")}
    for number in range(splits):
        generator = np.random.default_rng([11, number])
        drawn = generator.integers(0, len(wrong), CALIBRATION)
        doubt, errors = data.doubt[drawn], wrong[drawn]
        rows["certify"].append(_outcome(data, _certified(doubt, errors, risk, number), risk))
        for name, rule in PUBLISHED.items():
            rows[name].append(_outcome(data, _or_nothing(rule, doubt, errors, risk, number), risk))
        batch = generator.integers(0, len(wrong), BATCH)
        sets = trust.coverage_sets(data.class_doubt[drawn], data.label[drawn], miss=MISS)
        missed = data.class_doubt[np.arange(len(wrong)), data.label] > sets.thresholds[0]
        size = sets.members(data.class_doubt[batch]).sum(axis=1).mean()
        rows["sets"].append((missed.mean(), size))
    impostors, strangers = np.sort(data.impostor), np.sort(data.stranger)
    for number in range(TIMES * splits):
        generator = np.random.default_rng([12, number])
        values = np.concatenate([generator.choice(impostors, CALIBRATION), generator.choice(data.genuine, 100)])
        pairs = trust.certify_pairs(values, np.arange(len(values)) >= CALIBRATION, false_accept=FALSE_ACCEPT)
        accepted = 1 - np.searchsorted(impostors, pairs.threshold, side="right") / len(impostors)
        rows["pairs"].append((accepted > FALSE_ACCEPT, pairs.false_reject))
        drawn, batch = (generator.integers(0, len(wrong), count) for count in (CALIBRATION, BATCH))
        watch = trust.certify_strangers(
            data.doubt[drawn], generator.choice(strangers, CALIBRATION), false_accept=STRANGERS
        )
        answered = np.searchsorted(strangers, watch.threshold) / len(strangers)
        rows["strangers"].append((answered > STRANGERS, watch.coverage))
        chosen = trust.select_matches(data.doubt[batch], (data.doubt[drawn], ~wrong[drawn]), fdr=risk).accepted
        rows["batch"].append((wrong[batch][chosen].sum() / max(chosen.sum(), 1), chosen.mean()))
    means = {name: np.mean(values, axis=0) for name, values in rows.items()}
    facts = {"queries": len(wrong), "risk": risk, "oracle": oracle, "least": least_tested(risk, CONFIDENCE)}
    first = {"batch": "wrong", "sets": "missed"}
    second = {"pairs": "false_reject", "batch": "accepted", "sets": "size"}
    return facts | {
        name: {first.get(name, "violated"): float(a), second.get(name, "coverage"): float(b)}
        for name, (a, b) in means.items()
    }


def _certified(doubt: np.ndarray, wrong: np.ndarray, risk: float, seed: int) -> float:
    try:
        threshold = trust.certify(doubt, ~wrong, risk=risk, seed=seed).threshold
    except CertificateError:
        return -np.inf
    return -np.inf if threshold is None else threshold


def _or_nothing(rule: Any, doubt: np.ndarray, wrong: np.ndarray, risk: float, seed: int) -> float:
    try:
        return float(rule(doubt, wrong, risk, seed))
    except CertificateError:
        return -np.inf


def _outcome(data: Population, threshold: float, risk: float) -> tuple[bool, float]:
    """Whether more than the risk is wrong in the population, and the share answered."""
    given = data.doubt <= min(threshold, EVERYTHING)
    return bool(given.any() and (~data.right[given]).mean() > risk), float(given.mean())


def main() -> None:
    """Print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, default=Path("features"))
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/certificates.json"))
    options = parser.parse_args()
    results: dict[str, Any] = {}
    print("set | risk | certify | oracle | betting | bonferroni | SGR | pairs | strangers | batch | sets")
    for name, data in data_sets(options.features).items():
        if isinstance(data, str):
            print(f"{name} | {data}")
            results[name] = data
            continue
        row = results[name] = judged(data, options.splits)
        shown = [f"{row['certify']['violated']:.3f}, {row['certify']['coverage']:.3f}", f"{row['oracle']:.3f}"]
        shown += [f"{row[rule]['violated']:.3f}, {row[rule]['coverage']:.3f}" for rule in PUBLISHED]
        shown += [f"{row[rule]['violated']:.3f}" for rule in ("pairs", "strangers")]
        shown += [f"{row['batch']['wrong']:.3f}, {row['batch']['accepted']:.3f}"]
        shown += [f"{row['sets']['missed']:.3f}, {row['sets']['size']:.1f}"]
        print(" | ".join([name, f"{row['risk']:.3f}", *shown]), flush=True)
    write_json(options.output, {"splits": options.splits, "calibration": CALIBRATION, "results": results})


if __name__ == "__main__":
    main()
