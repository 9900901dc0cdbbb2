"""What does the rule of `probmetric recommend` gain over frozen features, and how often does it lose?

Small datasets are drawn from the frozen features of finished runs: some classes train and validate, up to sixty others
test. Whitening and LDA are fitted to those that train, the rule chooses by those that validate, and recall@1 of the
test classes says what came of it. `validation` is the method with the best MAP@R of the validation classes, whatever a
test says; `lda` is always LDA; `possible` is the best on the test classes.

    python benchmarks/recommended.py results/birds/birds-frozen/seed0 results/cars/cars-frozen/seed0 \
        --output benchmarks/results/recommended.json
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from _machine import hardware, keep, parser
from torch import nn
from tqdm import tqdm

from probmetric.planning.own_data import LARGER_VAL
from probmetric.reporting.recommended import LEVEL, Candidate, best, of_units
from probmetric.runs.folder import RunFolder
from probmetric.training.head_init import HeadInit, initialise_head

CLASSES, IMAGES, TESTED = (10, 15, 20, 30, 40), (5, 8, 12, 20, 40), 60
VALIDATES = 0.15  # share of the classes that do not test; larger ones as in `init`
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
            measured.append(draw(features, labels, rng))
    gains = {
        f"level {level:g}": [each.gains[best(each.candidates, level).method] for each in measured] for level in LEVELS
    }
    gains["validation"] = [
        each.gains[max(each.candidates, key=lambda method: method.means).method] for each in measured
    ]
    gains["lda"] = [each.gains["lda"] for each in measured]
    gains["possible"] = [max(each.gains.values()) for each in measured]
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


class Drawn(NamedTuple):
    """A drawn dataset: methods with their validation classes, and what each gains in recall@1 on the test classes."""

    candidates: list[Candidate]
    gains: dict[str, float]


def draw(features: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Drawn:
    """Draw a dataset, fit the maps and measure them."""
    classes, images = int(rng.choice(CLASSES)), int(rng.choice(IMAGES))
    names, counts = np.unique(labels, return_counts=True)
    drawn = rng.permutation(names[counts >= min(images, 5)])[: classes + TESTED]
    validates = round(VALIDATES * classes)
    for share, (enough, _) in LARGER_VAL.items():
        validates = round(share * classes) if validates < enough else validates
    val, train, test = (
        np.concatenate([rng.permutation(np.flatnonzero(labels == name))[:images] for name in part])
        for part in np.split(drawn, [validates, classes])
    )
    maps = {"frozen": features} | {kind: mapped(kind, features, train, labels) for kind in MAPS}
    recall = {kind: of_units(rows[test], labels[test])[1][:, 1].mean() for kind, rows in maps.items()}
    return Drawn(
        [Candidate(kind, of_units(rows[val], labels[val])[1], kind == "frozen") for kind, rows in maps.items()],
        {kind: float(value - recall["frozen"]) for kind, value in recall.items()},
    )


def mapped(kind: HeadInit, features: np.ndarray, train: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the features (N, D) after the map that is fitted to the rows `train`."""
    head = nn.Linear(features.shape[1], features.shape[1])
    numbers = np.unique(labels[train], return_inverse=True)[1]
    initialise_head(head, torch.from_numpy(features[train]), torch.from_numpy(numbers), kind)
    with torch.no_grad():
        return head(torch.from_numpy(features)).numpy()


if __name__ == "__main__":
    main()
