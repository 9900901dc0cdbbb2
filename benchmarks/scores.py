"""Does a score of the literature add to the free ones? Error AUROC together, less that of the free scores alone.

    mahalanobis   Mahalanobis++ (Mueller and Hein 2025): smallest Mahalanobis distance of the normalised features to a
                  class mean, one covariance within classes
    residual      of ViM (Wang et al. 2022): length of what the gallery's principal directions do not explain
    density       local density on the sphere: mean cosine of the answer to its ten nearest, less that of the query
    nnguide       NNGuide (Park et al. 2023): energy of the query times the mean of its ten nearest cosines, each
                  times the energy of that gallery image; class means stand for the classifier
    gallery       the gallery's part of HolUE (Erlygin and Zaytsev 2024): log odds of the nearest class, each class a
                  von Mises-Fisher distribution around its mean, one concentration for all
    holue         both of its parts together: `gallery`, and the image's own concentration, here the feature's length
    vmf_cosine    expected cosine of query and answer as von Mises-Fisher distributions with these concentrations
    r_value       of that cosine, with the variance that both distributions give it: the smallest share of answers among
                  which this one surely enough belongs (Henderson and Newton 2016; empirical Bayes, normal-normal, as
                  in Zeng et al. 2026). The answers of all queries are the population, so it is no score of one answer

The last three are judged only where features come with their lengths (not normalised).

Half of the images of each class are the gallery, at most `QUERIES` of the others ask. Both maps are cross-fitted over
classes; the interval draws classes again (`trust.added_auroc`).

    python benchmarks/scores.py --features FOLDER --output benchmarks/results/scores.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.special import logsumexp
from scipy.stats import norm

from probmetric import trust
from probmetric.directional import concentration_from_resultant, mean_resultant_length
from probmetric.io import write_json
from probmetric.retrieval import search
from probmetric.trust.answers import asked_in

QUERIES, NEAREST, EXPLAINED = 2000, 10, 0.9


def judged(vectors: np.ndarray, labels: np.ndarray) -> dict[str, dict[str, float]]:
    """Return, by score, its error AUROC alone and what it adds to the free scores."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors / lengths
    order = np.random.default_rng(0).permutation(len(labels))
    vectors, labels, lengths = vectors[order], labels[order], lengths[order, 0]
    rank = np.empty(len(labels), dtype=int)
    for label in np.unique(labels):
        rank[labels == label] = np.arange((labels == label).sum())
    inside = rank % 2 == 0
    lonely = np.bincount(labels)[labels] < 2
    asks = np.flatnonzero(~inside & ~lonely)[:QUERIES]
    inside &= ~lonely
    gallery, classes = vectors[inside].astype(np.float32), labels[inside]
    queries = vectors[asks].astype(np.float32)
    none = {"uncertainty": np.zeros(len(queries), dtype=np.float32)}
    record = {"mean": gallery, "uncertainty": np.zeros(len(gallery), dtype=np.float32)}
    answers = asked_in({"mean": queries, **none}, labels[asks], record, classes)
    scores = {
        "mahalanobis": mahalanobis(queries, gallery, classes),
        "residual": residual(queries, gallery),
        "density": density(queries, gallery, answers.match.indices[:, 0]),
        "nnguide": nnguide(queries, gallery, classes),
        "gallery": ambiguity(queries, gallery, classes),
    }
    parts = {name: {name: score} for name, score in scores.items()}
    if lengths.std() > 1e-3 * lengths.mean():
        parts["holue"] = parts["gallery"] | {"quality": -lengths[asks]}
        concentration = lengths / lengths.mean() * within(gallery, classes)[1]
        sure = mean_resultant_length(torch.from_numpy(concentration), vectors.shape[1]).numpy()
        nearest = answers.match.indices[:, 0]
        cosine = (queries * gallery[nearest]).sum(axis=1).astype(np.float64)
        sides = [(sure[asks], concentration[asks]), (sure[inside][nearest], concentration[inside][nearest])]
        expected = sure[asks] * sure[inside][nearest] * cosine
        parts["vmf_cosine"] = {"vmf_cosine": -expected}
        spread = second_moment(cosine, sides, vectors.shape[1]) - expected**2
        parts["r_value"] = {"r_value": r_values(expected, np.maximum(spread, 1e-12))}
    results = {}
    for name, doubts in parts.items():
        alone = trust.added_auroc(doubts, {}, answers.right, labels[asks], resamples=1)["free"]
        results[name] = {"alone": alone} | trust.added_auroc(answers.free, doubts, answers.right, labels[asks])
    return results


def second_moment(cosine: np.ndarray, sides: list[tuple[np.ndarray, np.ndarray]], dim: int) -> np.ndarray:
    """Return E[(x.y)^2] (Q,) of von Mises-Fisher x and y whose means have this cosine.

    `sides` are resultant length A and concentration k of both. E[x x^T] = a I + (1 - dim a) m m^T with a = A / k.
    """
    (a, b), (c, d) = (((length / k), 1 - dim * length / k) for length, k in sides)
    return np.asarray(dim * a * c + a * d + c * b + b * d * cosine**2)


def r_values(means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return the r-value (Q,) of scores with these means (Q,) and variances (Q,); low for those surely at the top."""
    centre, scatter = means.mean(), means.var()
    prior = max(scatter - variances.mean(), 0.01 * scatter)
    weight = prior / (prior + variances)
    posterior, deviation = centre + weight * (means - centre), np.sqrt(weight * variances)
    shares = np.linspace(0.005, 0.995, 199)
    tails = norm.cdf((posterior[:, None] - norm.ppf(1 - shares, centre, np.sqrt(prior))) / deviation[:, None])
    enough = np.array([np.quantile(tail, 1 - share) for tail, share in zip(tails.T, shares, strict=True)])
    reached = tails >= enough
    return np.where(reached.any(axis=1), shares[reached.argmax(axis=1)], 1.0)


def within(gallery: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the mean direction (C, M) of each class, and the concentration that all of them share."""
    numbers = np.unique(classes, return_inverse=True)[1]
    sums = np.zeros((numbers.max() + 1, gallery.shape[1]))
    np.add.at(sums, numbers, gallery)
    means = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    resultant = torch.tensor(np.linalg.norm(sums, axis=1).sum() / len(gallery))
    return means, float(concentration_from_resultant(resultant, gallery.shape[1]))


def nnguide(queries: np.ndarray, gallery: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return minus the guided energy (Q,)."""
    means, concentration = within(gallery, classes)
    energy, bank = (logsumexp(concentration * rows @ means.T, axis=1) for rows in (queries, gallery))
    nearest = search(queries, gallery, NEAREST)
    return np.asarray(-energy * (nearest.cosines * bank[nearest.rows]).mean(axis=1))


def ambiguity(queries: np.ndarray, gallery: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return minus the log odds (Q,) of the most likely class against all others."""
    means, concentration = within(gallery, classes)
    logits = np.sort(concentration * queries @ means.T, axis=1)
    return np.asarray(logsumexp(logits[:, :-1], axis=1) - logits[:, -1])


def mahalanobis(queries: np.ndarray, gallery: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the distance (Q,) to the nearest class mean, shrunk a little towards the identity."""
    numbers = np.unique(classes, return_inverse=True)[1]
    means = np.zeros((numbers.max() + 1, gallery.shape[1]))
    np.add.at(means, numbers, gallery)
    means /= np.bincount(numbers)[:, None]
    covariance = np.cov((gallery - means[numbers]).T) + 1e-6 * np.eye(gallery.shape[1])
    root = np.linalg.cholesky(np.linalg.inv(covariance))
    asked, centres = queries @ root, means @ root
    squares = (asked**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * asked @ centres.T
    return np.asarray(squares.min(axis=1))


def residual(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """Return the length (Q,) outside the directions that explain `EXPLAINED` of the gallery's variance."""
    centre = gallery.mean(axis=0)
    values, directions = np.linalg.eigh(np.cov((gallery - centre).T))
    left = np.cumsum(values) <= (1 - EXPLAINED) * values.sum()
    return np.asarray(np.linalg.norm((queries - centre) @ directions[:, left], axis=1))


def density(queries: np.ndarray, gallery: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """Return how much farther (Q,) the query is from its nearest than the answer is from its own."""
    around = search(gallery[nearest], gallery, NEAREST, self_index=nearest).cosines.mean(axis=1)
    return np.asarray(around - search(queries, gallery, NEAREST).cosines.mean(axis=1))


def main() -> None:
    """Print what every score adds and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, default=Path("features"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/scores.json"))
    options = parser.parse_args()
    results = {}
    for path in sorted(options.features.glob("*.npz")):
        with np.load(path) as stored:
            results[path.stem] = judged(stored["vectors"], stored["labels"])
        for name, row in results[path.stem].items():
            adds = "adds .02" if row["added_low"] >= 0.02 else "does not add .02"
            interval = f"[{row['added_low']:+.3f}, {row['added_high']:+.3f}]"
            head = f"{path.stem} {name}: alone {row['alone']:.3f}, free {row['free']:.3f}"
            print(f"{head}, {adds}: {row['added']:+.3f} {interval}")
    if not results:
        print(f"no features in {options.features}: nothing is judged")
    write_json(options.output, results)


if __name__ == "__main__":
    main()
