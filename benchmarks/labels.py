"""How many planted wrong labels are found, by class means (`trust.suspect_labels`) and by the nearest image.

Random labels are planted at each rate. Of N planted labels the N most suspicious images are looked at
(`precision_at_planted`), and the first half of them (`precision_at_half`). AUROC is over all images. A file holds
`vectors` (N, M) and `labels` (N,):

    python benchmarks/labels.py birds.npz cars.npz --output benchmarks/results/labels.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import _machine
import numpy as np
from scipy.stats import rankdata

from probmetric.trust import suspect_labels

RATES, SEEDS, BLOCK = (0.05, 0.2), 5, 2048


def main() -> None:
    """Measure every file and write the report."""
    parser = _machine.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": _machine.hardware("numpy"), "seeds": SEEDS}
    for file in options.files:
        with np.load(file) as content:
            vectors, labels = content["vectors"], np.unique(content["labels"], return_inverse=True)[1]
        report[file.stem] = {"images": len(labels), "classes": int(labels.max()) + 1} | {
            f"{rate:.0%}": measured(vectors, labels, rate) for rate in RATES
        }
    _machine.keep(report, options.output)


def measured(vectors: Any, labels: Any, rate: float) -> dict[str, dict[str, float]]:
    """Return the mean over seeds of what each way finds."""
    rows: dict[str, list[dict[str, float]]] = {"class means": [], "nearest image": []}
    for seed in range(SEEDS):
        generator = np.random.default_rng(seed)
        wrong = generator.random(len(labels)) < rate
        other = (labels + generator.integers(1, labels.max() + 1, len(labels))) % (labels.max() + 1)
        planted = np.where(wrong, other, labels)
        rows["class means"].append(judged(suspect_labels(vectors, planted).suspicion, wrong))
        rows["nearest image"].append(judged(by_nearest(vectors, planted), wrong))
    return {
        way: {name: round(float(np.mean([row[name] for row in seeds])), 3) for name in seeds[0]}
        for way, seeds in rows.items()
    }


def by_nearest(vectors: Any, labels: Any) -> Any:
    """Return the cosine of the nearest image of another class minus that of the nearest of the same class."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    suspicion = []
    for start in range(0, len(unit), BLOCK):
        cosines = unit[start : start + BLOCK] @ unit.T
        cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = -np.inf
        same = labels[start : start + BLOCK, None] == labels
        suspicion.append(np.where(same, -1, cosines).max(axis=1) - np.where(same, cosines, -1).max(axis=1))
    return np.concatenate(suspicion)


def judged(suspicion: Any, wrong: Any) -> dict[str, float]:
    """Return precision among the first and AUROC of a ranking."""
    order, count = np.argsort(-suspicion, kind="stable"), int(wrong.sum())
    ranks = rankdata(suspicion)
    auroc = (ranks[wrong].sum() - count * (count + 1) / 2) / (count * (len(wrong) - count))
    return {
        "precision_at_planted": float(wrong[order[:count]].mean()),
        "precision_at_half": float(wrong[order[: count // 2]].mean()),
        "auroc": float(auroc),
    }


if __name__ == "__main__":
    main()
