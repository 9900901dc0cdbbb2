"""What does the rule of `probmetric recommend` gain over frozen features, and how often does it lose?

Small datasets are drawn from the frozen features of finished runs: some classes train and validate, up to sixty others
test.
Whitening and LDA are fitted to those that train, the rule chooses by those that validate, and recall@1 of the test
classes says what came of it. `validation` is the method with the best MAP@R of the validation classes, whatever a test
says; `lda` is always LDA; `possible` is the best on the test classes.

    python benchmarks/recommended.py results/birds/birds-frozen/seed0 results/cars/cars-frozen/seed0 \
        --output benchmarks/results/recommended.json
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from _machine import hardware, keep, parser
from torch import nn
from tqdm import tqdm

from probmetric.planning.own_data import FEW_VALIDATING
from probmetric.reporting.recommended import LEVEL, clearly_better
from probmetric.retrieval.measures import retrieval_per_query
from probmetric.runs.folder import RunFolder
from probmetric.training.head_init import HeadInit, initialise_head

CLASSES, IMAGES, TESTED = (10, 15, 20, 30, 40), (5, 8, 12, 20, 40), 60
VALIDATES = 0.3, 0.5  # as `init`: the second share where the first leaves fewer than `FEW_VALIDATING` classes
LEVELS = (0.05, LEVEL, 0.2)
MAPS: tuple[HeadInit, ...] = ("whitening", "lda")


def main() -> None:
    """Draw the datasets, print what each rule gains, write the record."""
    command = parser(__doc__)
    command.add_argument("runs", nargs="+", type=Path, help="folders of finished runs of frozen features")
    command.add_argument("--draws", type=int, default=60, help="datasets drawn from each run")
    options = command.parse_args()
    rng = np.random.default_rng(0)
    measured = []
    for folder in options.runs:
        parts = [RunFolder(folder).embeddings(split) for split in ("val", "test")]
        features, labels = (np.concatenate([part[name] for part in parts]) for name in ("mean", "label"))
        for _ in tqdm(range(options.draws), desc=str(folder), disable=None):
            measured.append(one(features, labels, rng))
    gains = {f"level {level:g}": [gain(each, level) for each in measured] for level in LEVELS}
    gains["validation"] = [each["tested"][each["best"]] for each in measured]
    gains["lda"] = [each["tested"]["lda"] for each in measured]
    gains["possible"] = [max(each["tested"].values()) for each in measured]
    rules = {
        name: {
            "gain": round(float(np.mean(values)), 4),
            "better": sum(value > 0 for value in values),
            "worse": sum(value < 0 for value in values),
            "worst": round(float(min(values)), 4),
        }
        for name, values in gains.items()
    }
    keep({"hardware": hardware("torch"), "datasets": len(measured), "level": LEVEL, "rules": rules}, options.output)


def one(features: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> dict:
    """Return what a drawn dataset says: values of its validation classes, gains of recall@1 on its test classes."""
    classes, images = int(rng.choice(CLASSES)), int(rng.choice(IMAGES))
    names, counts = np.unique(labels, return_counts=True)
    drawn = rng.permutation(names[counts >= min(images, 5)])[: classes + TESTED]
    usual, larger = (round(share * classes) for share in VALIDATES)
    validates = usual if usual >= FEW_VALIDATING else larger
    val, train, test = (
        np.concatenate([rng.permutation(np.flatnonzero(labels == name))[:images] for name in part])
        for part in np.split(drawn, [validates, classes])
    )
    by_class, recall = {}, {}
    shown = {"frozen": features} | {kind: mapped(kind, features, train, labels) for kind in MAPS}
    for kind, rows in shown.items():
        by_class[kind] = of_classes(rows[val], labels[val])
        recall[kind] = of_classes(rows[test], labels[test])[:, 1].mean()
    return {
        "by_class": by_class,
        "best": max(by_class, key=lambda kind: by_class[kind][:, 0].mean()),
        "tested": {kind: float(value - recall["frozen"]) for kind, value in recall.items()},
    }


def mapped(kind: HeadInit, features: np.ndarray, train: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the features (N, D) after the map that is fitted to the rows `train`."""
    head = nn.Linear(features.shape[1], features.shape[1])
    numbers = np.unique(labels[train], return_inverse=True)[1]
    initialise_head(head, torch.from_numpy(features[train]), torch.from_numpy(numbers), kind)
    with torch.no_grad():
        return head(torch.from_numpy(features)).numpy()


def of_classes(shown: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return MAP@R and recall@1 of each class (C, 2)."""
    values = retrieval_per_query(shown, labels, ks=(1,), normalize=True)
    both = np.stack([values["map_at_r"], values["recall_at_1"]], axis=1)
    return np.stack([both[labels == name].mean(axis=0) for name in np.unique(labels)])


def gain(measured: dict, level: float) -> float:
    """Return the recall@1 that the rule gains over frozen features at a level of its test."""
    by_class = measured["by_class"]
    better = clearly_better([by_class[kind] for kind in MAPS], by_class["frozen"], level)
    preferred = [kind for kind, clearly in zip(MAPS, better, strict=True) if clearly]
    return measured["tested"][max(preferred, key=lambda kind: by_class[kind][:, 0].mean(), default="frozen")]


if __name__ == "__main__":
    main()
