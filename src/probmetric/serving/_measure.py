"""Metrics of labelled images, as the workflow measures them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.data.loose import loose_images
from probmetric.errors import ServingError

if TYPE_CHECKING:
    from probmetric.serving._model import Model


def measured(model: Model, images: Any, class_names: Sequence[str] | None, ks: tuple[int, ...]) -> dict[str, float]:
    """See `Model.evaluate`."""
    from probmetric.runs.evaluate_settings import EvaluationSettings
    from probmetric.runs.evaluate_test import evaluate_test
    from probmetric.runs.folder import Embeddings
    from probmetric.trust.answers import answers_among_others

    items = loose_images(images, None, class_names)
    if "" in items.class_names:
        raise ServingError("images without a class: nobody can say which answers are right. Name their classes.")
    labels = np.unique([*model.classes, *items.class_names], return_inverse=True)[1]
    tensors = {name: values.numpy() for name, values in model.embed(items.images).tensors().items()}
    tensors["label"] = labels[len(model.classes) :]
    about = {"uncertainty": model.record.uncertainty.name, "classes": json.dumps(labels[: len(model.classes)].tolist())}
    test = Embeddings(tensors, about)
    settings = EvaluationSettings(ks=ks, clustering=False, structure=False)
    return evaluate_test(test, settings, answers_among_others(test, ks)).metrics
