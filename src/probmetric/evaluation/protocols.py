"""Protocols: how models are selected and combined before a number is reported.

MLRC ("A metric learning reality check", Musgrave et al. 2020): the training classes are cut into 4 contiguous,
class-disjoint folds; 4 models are trained, each validated on its fold; on test, `separated` is the mean over the
models of their 128-d embeddings' metrics and `concatenated` those of the joined, re-normalised 512-d embeddings.

Selection: the number of the epoch with the best validation metric is what may be reported. The last epoch is given
next to it, and the best test epoch, which papers 000, 001 and 003 report, as what the habit is worth: it has seen the
test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probmetric.evaluation import _arrays
from probmetric.evaluation.retrieval import retrieval_metrics

MLRC_METRICS = ("precision_at_1", "r_precision", "map_at_r")


def mlrc_folds(labels: Any, folds: int = 4) -> list[NDArray[np.int64]]:
    """The classes of each validation fold: the distinct `labels` (N,) in order, cut into `folds` contiguous parts.

    Example:
        >>> [fold.tolist() for fold in mlrc_folds([0, 0, 1, 2, 3, 4, 5, 6], 4)]
        [[0, 1], [2, 3], [4, 5], [6]]
    """
    array = _arrays.to_numpy(labels)
    classes = np.unique(_arrays.labels_of(array, len(array), "labels", "embeddings"))
    if not 2 <= folds <= len(classes):
        raise ValueError(f"folds is {folds}; expected 2 to {len(classes)}, the number of classes.")
    return np.array_split(classes, folds)


def mlrc_metrics(embeddings: Sequence[Any], labels: Any) -> dict[str, float]:
    """P@1, R-precision and MAP@R of the models' test `embeddings`, a list of (N,M), separated and concatenated.

    Example:
        >>> model = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]
        >>> mlrc_metrics([model, model], [0, 0, 1, 1])["concatenated/map_at_r"]
        1.0
    """
    if len(embeddings) < 2:
        raise ValueError(f"{len(embeddings)} set of embeddings given; expected one for each of at least 2 models.")
    sets = [_arrays.matrix(rows, f"embeddings[{number}]") for number, rows in enumerate(embeddings)]
    sets = [_arrays.normalized(rows, f"embeddings[{number}]") for number, rows in enumerate(sets)]
    separated = [retrieval_metrics(rows, labels, ks=(1,)) for rows in sets]
    joined = retrieval_metrics(np.concatenate(sets, axis=1), labels, ks=(1,), normalize=True)
    result = {f"separated/{name}": float(np.mean([one[name] for one in separated])) for name in MLRC_METRICS}
    return result | {f"concatenated/{name}": joined[name] for name in MLRC_METRICS}


def selection_comparison(validation: Any, test: Any) -> dict[str, float]:
    """One metric (higher is better) over epochs, (E,) on `validation` and `test`, as three habits would report it.

    Example:
        >>> selection_comparison([0.5, 0.7, 0.6], [0.4, 0.6, 0.65])["best_on_test_leaking"]
        0.65
    """
    seen = _arrays.vector(validation, "validation")
    held_out = _arrays.vector(test, "test", count=len(seen))
    return {
        "validation_selected": float(held_out[int(np.argmax(seen))]),
        "last": float(held_out[-1]),
        "best_on_test_leaking": float(held_out.max()),
    }
