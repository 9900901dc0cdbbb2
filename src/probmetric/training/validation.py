"""The selection metric, measured on the validation split only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import Tensor

from probmetric.config import ConfigError
from probmetric.retrieval.measures import retrieval_metrics
from probmetric.training.forward import embed_split
from probmetric.uncertainty._base import class_probabilities, evaluating

if TYPE_CHECKING:
    from probmetric.losses import Loss
    from probmetric.models import Encoder
    from probmetric.training.data import TrainingData

SelectionMetric = Literal["recall_at_1", "map_at_r", "accuracy"]


def check_selection(data: TrainingData, metric: SelectionMetric) -> None:
    """Refuse a metric that cannot be measured on the validation images of `data`.

    Raises:
        ConfigError: no two images are of one class, or, for accuracy, their classes are not the training classes.
    """
    if data.has_validation and metric == "accuracy" and not data.closed_set:
        raise ConfigError(
            "training.selection_metric is 'accuracy', but the validation classes are unseen; use recall_at_1 or "
            "map_at_r."
        )
    if data.has_validation and metric != "accuracy" and len(data.val_labels.unique()) == len(data.val_labels):
        raise ConfigError(
            "no validation image has a second one of its class, so nothing can be retrieved: there must be more "
            "validation images of a class."
        )


def validate(encoder: Encoder, loss: Loss, data: TrainingData, metric: SelectionMetric) -> float:
    """Return the selection metric of the current weights; higher is better.

    Raises:
        ConfigError: accuracy is asked for, but the loss defines no classifier.
    """
    embeddings = embed_split(encoder, data, "val")
    return data.processes.once(lambda: _measure(embeddings, loss, data, metric))


def _measure(embeddings: Tensor, loss: Loss, data: TrainingData, metric: SelectionMetric) -> float:
    """Return `metric` of the validation images' embeddings (N, M)."""
    if metric != "accuracy":
        rows = embeddings if embeddings.is_cuda else embeddings.numpy()
        return float(retrieval_metrics(rows, data.val_labels.numpy(), ks=(1,), normalize=True)[metric])
    with evaluating(loss):
        probabilities = class_probabilities(loss, embeddings, data.seed)
    if probabilities is None:
        raise ConfigError(
            "training.selection_metric is 'accuracy', but the loss defines no classifier; use recall_at_1 or map_at_r."
        )
    return float((probabilities.argmax(dim=1).cpu() == data.val_labels).float().mean())
