"""The selection metric, measured on the validation split only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from probmetric.config import ConfigError
from probmetric.retrieval.measures import retrieval_metrics
from probmetric.training.forward import embed_split

if TYPE_CHECKING:
    from probmetric.losses import Loss
    from probmetric.models import Encoder
    from probmetric.training.data import TrainingData

SelectionMetric = Literal["recall_at_1", "map_at_r", "accuracy"]


def validate(encoder: Encoder, loss: Loss, data: TrainingData, metric: SelectionMetric) -> float:
    """Return the selection metric of the current weights; higher is better.

    Raises:
        ConfigError: accuracy is asked for, but the loss defines no classifier or the validation classes are others
            than the training classes.
    """
    embeddings = embed_split(encoder, data, "val")
    return data.processes.once(lambda: _measure(embeddings, loss, data, metric))


def _measure(embeddings: Tensor, loss: Loss, data: TrainingData, metric: SelectionMetric) -> float:
    """Return `metric` of the validation images' embeddings (N, M)."""
    if metric != "accuracy":
        rows = embeddings if embeddings.is_cuda else embeddings.numpy()
        values = retrieval_metrics(rows, data.val_labels.numpy(), ks=(1,), normalize=True)
        if math.isnan(values[metric]):
            raise ConfigError(
                "no validation image has a second one of its class, so nothing can be retrieved; prepare the dataset "
                "with a larger validation split."
            )
        return float(values[metric])
    with torch.no_grad():
        was_training = loss.training
        loss.eval()
        probabilities = loss.probabilities(embeddings, generator=None)
        loss.train(was_training)
    if probabilities is None or not data.closed_set:
        reason = "the loss defines no classifier" if probabilities is None else "the validation classes are unseen"
        raise ConfigError(f"training.selection_metric is 'accuracy', but {reason}; use recall_at_1 or map_at_r.")
    return float((probabilities.argmax(dim=1).cpu() == data.val_labels).float().mean())
