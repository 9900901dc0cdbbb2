"""The answers of a run, by where they were asked.

test         each test image asked among the others
val          each validation image asked among the others: a smaller gallery, of other classes
ood/<name>   strangers, asked among the test images; every answer is wrong
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probmetric.runs.folder import Embeddings, RunFolder
from probmetric.trust.answers import KEPT, LEAST, Answers, among_others, asked_in


def run_answers(run: RunFolder, ks: Sequence[int] = ()) -> dict[str, Answers]:
    """Return the answers of a run by where they were asked; a set without images is left out.

    `ks` are the cutoffs of the retrieval metrics that come along (see `among_others`).
    """
    test = run.embeddings("test")
    answers: dict[str, Answers | None] = {"test": answers_among_others(test, ks)}
    if run.holds("val", "mean"):
        answers["val"] = answers_among_others(run.embeddings("val"), ks)
    if run.holds("ood", "mean"):
        strangers = run.embeddings("ood")
        for number, name in enumerate(ood_sets(strangers)):
            answers[f"ood/{name}"] = strangers_among(strangers, test, ood_source(strangers) == number)
    return {name: each for name, each in answers.items() if each is not None}


def answers_among_others(split: Embeddings, ks: Sequence[int] = ()) -> Answers | None:
    """Return the answers to every image of a split asked among the others; None where there are not two.

    `ks` as in `among_others`.
    """
    return among_others(split.tensors, split["label"], ks) if len(split["mean"]) >= LEAST else None


def strangers_among(split: Embeddings, gallery: Embeddings, rows: NDArray[np.bool_]) -> Answers | None:
    """Return the answers, all wrong, to the images `rows` (N,) of `split` asked in `gallery`; None without images."""
    if not rows.any() or len(gallery["mean"]) < LEAST:
        return None
    record = {name: values[rows] for name, values in split.tensors.items() if name in KEPT}
    return asked_in(record, np.full(rows.sum(), -1), gallery.tensors, gallery["label"])


def ood_sets(strangers: Embeddings) -> list[str]:
    """Return the names of the out-of-distribution sets of an embeddings file."""
    return list(json.loads(strangers.metadata.get("sources", '["ood"]')))


def ood_source(strangers: Embeddings) -> NDArray[np.int64]:
    """Return the number (N,) of the set that each image is of."""
    return strangers.tensors.get("source", np.zeros(len(strangers["uncertainty"]), dtype=np.int64))
