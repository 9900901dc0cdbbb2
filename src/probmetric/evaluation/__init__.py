"""Evaluation of probabilistic image embeddings: pure functions on arrays.

NumPy arrays and torch tensors go in, plain numbers come out. Importing this package loads NumPy only; faiss, SciPy and
torch are imported by the functions that need them. docs/evaluation.md defines every metric, with its source and its
direction.
"""

from probmetric.evaluation.calibration import Reliability, calibration_error, reliability
from probmetric.evaluation.classification import classification_metrics
from probmetric.evaluation.clustering import agreement, clustering_metrics
from probmetric.evaluation.correlation import spearman
from probmetric.evaluation.evaluator import EvaluationSettings, evaluate_run
from probmetric.evaluation.neighbours import Neighbours, nearest_neighbours
from probmetric.evaluation.ood import auroc, ood_metrics, roc_curve
from probmetric.evaluation.retrieval import retrieval_metrics, retrieval_per_query, summarize
from probmetric.evaluation.selective import SparsificationCurve, sparsification
from probmetric.evaluation.statistics import PairedResult, bootstrap_interval, holm, mean_interval, paired_test

__all__ = [
    "EvaluationSettings",
    "Neighbours",
    "PairedResult",
    "Reliability",
    "SparsificationCurve",
    "agreement",
    "auroc",
    "bootstrap_interval",
    "calibration_error",
    "classification_metrics",
    "clustering_metrics",
    "evaluate_run",
    "holm",
    "mean_interval",
    "nearest_neighbours",
    "ood_metrics",
    "paired_test",
    "reliability",
    "retrieval_metrics",
    "retrieval_per_query",
    "roc_curve",
    "sparsification",
    "spearman",
    "summarize",
]
