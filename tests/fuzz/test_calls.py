"""Public functions of retrieval, metrics and directional under random arguments, good and bad."""

import numpy as np
import pytest
import torch
from calls import fuzz

from probmetric import directional, metrics, retrieval

CALLS = 1200  # of a room, about; seeded


def rows_of(g, count, dim):
    rows = g.normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(g.choice(["float32", "float64"]))


def labelled(g, least=2):
    count, dim = int(g.integers(least, 12)), int(g.integers(1, 6))
    return {"embeddings": rows_of(g, count, dim), "labels": g.integers(0, 4, count)}


def searched(g):
    count, others, dim = int(g.integers(1, 8)), int(g.integers(2, 10)), int(g.integers(1, 6))
    return {
        "embeddings": rows_of(g, count, dim),
        "labels": g.integers(0, 3, count),
        "gallery": rows_of(g, others, dim),
        "gallery_labels": g.integers(-1, 3, others) if g.random() < 0.5 else g.integers(0, 3, others),
        "ignore": g.random((count, others)) < 0.2,
        "self_index": g.integers(-1, others, count),
        "ks": tuple(g.integers(1, 12, 2).tolist()),
        "ties": str(g.choice(["pessimistic", "optimistic", "expected"])),
    }


def by_distance(g):
    distance = str(g.choice(["euclidean", "poincare"]))
    return (
        labelled(g)
        | {"distance": distance}
        | ({} if distance == "euclidean" else {"embeddings": 0.5 * rows_of(g, 3, 2), "labels": np.array([0, 0, 1])})
    )


def neighbours(g):
    made = searched(g)
    return {
        "queries": made["embeddings"],
        "gallery": made["gallery"],
        "k": int(g.integers(1, 4)),
        "ignore": made["ignore"],
    }


def among(g):
    made = labelled(g, 3)
    return {"queries": made["embeddings"], "k": int(g.integers(1, 3)), "normalize": bool(g.random() < 0.5)}


def match(g):
    made = searched(g)
    names = {"embeddings": "queries"}
    kept = ("embeddings", "gallery", "gallery_labels", "ignore", "self_index")
    return {names.get(name, name): made[name] for name in kept} | {"k": int(g.integers(1, 6))}


def recorded(g):
    """The arguments of `match`, images' rows in records."""
    made = match(g)
    return made | {"query": {"mean": made.pop("queries")}, "gallery": {"mean": made["gallery"]}}


def recorded_among(g):
    made = labelled(g)
    return {"record": {"mean": made["embeddings"]}, "labels": made["labels"], "ks": (1, 2), "k": 2}


def samples(g):
    count, draws, dim = int(g.integers(2, 8)), int(g.integers(1, 4)), int(g.integers(1, 5))
    return {"samples": g.normal(size=(count, draws, dim)), "labels": g.integers(0, 3, count)}


def two(first, second, kind="vector"):
    def make(g):
        count = int(g.integers(1, 30))
        values = g.normal(size=count).round(int(g.integers(0, 4)))
        other = g.normal(size=count).round(1) if kind == "vector" else (g.random(count) < 0.6)
        if kind == "confidence":
            values = g.random(count).round(2)
        return {first: values, second: other}

    return make


def probabilities(g):
    count, classes = int(g.integers(1, 12)), int(g.integers(1, 5))
    return {
        "probabilities": g.dirichlet(np.ones(classes), count),
        "labels": g.integers(0, classes, count),
        "bins": int(g.integers(1, 6)),
    }


def logits(g):
    made = probabilities(g)
    return {"logits": g.normal(size=made["probabilities"].shape), "labels": made["labels"]}


def proxies(g):
    made = labelled(g)
    count = int(g.integers(1, 5))
    return made | {
        "proxies": g.normal(size=(count, made["embeddings"].shape[1])),
        "proxy_labels": g.integers(0, 4, count),
    }


def partitions(g):
    count = int(g.integers(1, 12))
    return {"first": g.integers(0, 4, count), "second": g.integers(0, 4, count)}


def measured(g):
    """Methods by name, each with a value for some seeds."""
    counts = g.integers(1, 5, g.integers(1, 12)).tolist()
    return {"samples": {f"m{i}": metrics.Sample(dict(enumerate(g.random(n).tolist()))) for i, n in enumerate(counts)}}


def variances(g):
    count = int(g.integers(2, 9))
    return {"variances": 0.01 + g.random(count), "freedom": g.integers(1, 6, count)}


METRICS = {
    "agreement": (metrics.agreement, partitions),
    "auroc": (metrics.auroc, two("negative_scores", "positive_scores")),
    "calibration_error": (metrics.calibration_error, two("confidence", "correct", "confidence")),
    "classification_metrics": (metrics.classification_metrics, probabilities),
    "classwise_calibration_error": (metrics.classwise_calibration_error, probabilities),
    "clustering_metrics": (metrics.clustering_metrics, lambda g: labelled(g) | {"seed": 3}),
    "fit_temperature": (metrics.fit_temperature, logits),
    "holm": (metrics.holm, lambda g: {"p_values": g.random(g.integers(1, 6))}),
    "unit_variance": (
        metrics.unit_variance,
        lambda g: {"contributions": g.normal(size=(g.integers(1, 4), g.integers(2, 9)))},
    ),
    "mean_interval": (metrics.mean_interval, lambda g: {"values": g.normal(size=g.integers(2, 9)), "confidence": 0.9}),
    "ood_metrics": (metrics.ood_metrics, two("id_uncertainty", "ood_uncertainty")),
    "paired_test": (metrics.paired_test, two("a", "b")),
    "pairwise_tests": (metrics.pairwise_tests, lambda g: measured(g) | {"least": 3}),
    "pooled_variances": (metrics.pooled_variances, variances),
    "proxy_transport": (metrics.proxy_transport, proxies),
    "reliability": (metrics.reliability, two("confidence", "correct", "confidence")),
    "roc_curve": (metrics.roc_curve, lambda g: two("id_uncertainty", "ood_uncertainty")(g) | {"points": 5}),
    "scaled_probabilities": (
        metrics.scaled_probabilities,
        lambda g: {"logits": logits(g)["logits"], "temperature": 0.7},
    ),
    "seeds_needed": (metrics.seeds_needed, lambda g: {"effect_size": float(g.normal()), "most": 30}),
    "selective_metrics": (metrics.selective_metrics, two("uncertainty", "correct", "answers")),
    "sign_flip_test": (metrics.sign_flip_test, lambda g: {"differences": g.normal(size=(3, 6))}),
    "sparsification": (metrics.sparsification, two("uncertainty", "correct", "answers")),
    "spearman": (metrics.spearman, two("first", "second")),
    "structure_metrics": (metrics.structure_metrics, labelled),
    "verification_metrics": (metrics.verification_metrics, two("similarity", "same", "answers")),
}
RETRIEVAL = {
    "retrieval_metrics": (retrieval.retrieval_metrics, labelled),
    "retrieval_metrics of a gallery": (retrieval.retrieval_metrics, searched),
    "retrieval_metrics by distance": (retrieval.retrieval_metrics, by_distance),
    "retrieval_per_query": (retrieval.retrieval_per_query, searched),
    "search": (retrieval.search, neighbours),
    "search among": (retrieval.search, among),
    "find_match": (lambda **arguments: retrieval.find_match(**arguments).record, recorded),
    "match_among": (lambda **arguments: retrieval.match_among(**arguments)[1], recorded_among),
    "match_record": (retrieval.match_record, match),
    "neighbour_votes": (retrieval.neighbour_votes, samples),
    "sampled_retrieval_metrics": (retrieval.sampled_retrieval_metrics, samples),
    "summarize": (
        retrieval.summarize,
        lambda g: {"values": retrieval.retrieval_per_query(**labelled(g)), "empty": "skip"},
    ),
}


def natural(g):
    a, b, dim = (int(each) for each in g.integers(2, 6, 3))
    return {"nu_z": torch.from_numpy(g.normal(size=(a, dim))), "nu_p": torch.from_numpy(g.normal(size=(b, dim)))}


def directions(g):
    rows = torch.from_numpy(g.normal(size=(int(g.integers(1, 5)), int(g.integers(2, 6)))))
    return torch.nn.functional.normalize(rows, dim=-1)


def log_prob(kind):
    def call(loc, concentration):
        return kind(loc, concentration).log_prob(loc)

    return call


def located(g):
    loc = directions(g)
    return {"loc": loc, "concentration": torch.from_numpy(g.exponential(10, size=len(loc)))}


def concentrations(g):
    return {"kappa": torch.from_numpy(g.exponential(30, size=4)), "dim": int(g.integers(2, 64))}


DIRECTIONAL = {
    "bhattacharyya": (directional.bhattacharyya, natural),
    "concentration_from_resultant": (
        directional.concentration_from_resultant,
        lambda g: {"resultant": torch.from_numpy(g.random(3)), "dim": int(g.integers(2, 64))},
    ),
    "expected_likelihood": (directional.expected_likelihood, natural),
    "fit": (directional.fit, lambda g: {"samples": directions(g)}),
    "fuse": (
        directional.fuse,
        lambda g: {"mean": located(g)["loc"][None], "concentration": located(g)["concentration"]},
    ),
    "kl": (directional.kl, natural),
    "log_normalizer": (directional.log_normalizer, concentrations),
    "mean_resultant_length": (directional.mean_resultant_length, concentrations),
    "product_kernel": (directional.product_kernel, lambda g: natural(g) | {"rho": 0.5}),
    "von_mises_fisher": (log_prob(directional.VonMisesFisher), located),
    "power_spherical": (log_prob(directional.PowerSpherical), located),
}


@pytest.mark.parametrize(
    ("cases", "calls"),
    [(METRICS, CALLS), (RETRIEVAL, CALLS), (DIRECTIONAL, CALLS)],
    ids=["metrics", "retrieval", "directional"],
)
def test_every_call_gives_a_result_or_a_sentence(cases, calls):
    faults = fuzz(cases, calls, seed=1)
    assert not faults, f"{len(faults)} of {calls}\n" + "\n".join(faults[:12])
