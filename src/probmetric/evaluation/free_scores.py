"""What a search says about its own answer for nothing, as baselines of every uncertainty; higher = less sure.

cosine        1 - cosine to the nearest neighbour
disagreement  share of the 10 nearest whose class is not that of the nearest
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probmetric.evaluation import _arrays
from probmetric.evaluation.neighbours import Neighbours

Doubles = NDArray[np.float64]
NEAREST = 10


def free_scores(found: Neighbours, labels: Any) -> dict[str, Doubles]:
    """Free scores (Q,) by name, of the neighbours (Q,k) found in a gallery with `labels` (N,).

    Without a second neighbour nobody can disagree, and there is only the cosine.

    Examples:
        >>> found = Neighbours(np.array([[0.9, 0.8, 0.1]]), np.array([[0, 1, 2]]))
        >>> {name: values.round(2).tolist() for name, values in free_scores(found, [5, 5, 7]).items()}
        {'cosine': [0.1], 'disagreement': [0.33]}
    """
    classes = _arrays.to_numpy(labels)[found.indices]
    scores = {"cosine": 1.0 - found.similarity[:, 0]}
    if classes.shape[1] > 1:
        scores["disagreement"] = (classes != classes[:, :1]).mean(axis=1)
    return scores
