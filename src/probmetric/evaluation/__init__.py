"""Evaluation of probabilistic image embeddings: pure functions on arrays.

NumPy arrays and torch tensors go in, plain numbers come out. Importing this package loads NumPy only; faiss, SciPy and
torch are imported by the functions that need them. docs/evaluation.md defines every metric, with its source and its
direction.
"""

from probmetric.evaluation.calibration import Reliability, calibration_error, classwise_calibration_error, reliability
from probmetric.evaluation.certificates import Certificate, CertificateError, certify
from probmetric.evaluation.classification import classification_metrics
from probmetric.evaluation.clustering import agreement, clustering_metrics
from probmetric.evaluation.correlation import spearman
from probmetric.evaluation.evaluator import evaluate_run
from probmetric.evaluation.gallery import Gallery, GalleryIndex
from probmetric.evaluation.match import match_scores
from probmetric.evaluation.neighbours import Neighbours, nearest_neighbours
from probmetric.evaluation.ood import auroc, ood_metrics, roc_curve
from probmetric.evaluation.p_right import PRight, added_auroc, fit_p_right, p_right_metrics
from probmetric.evaluation.retrieval import retrieval_metrics, retrieval_per_query, summarize
from probmetric.evaluation.sampled import neighbour_votes, retrieval_calibration, sampled_retrieval_metrics
from probmetric.evaluation.selective import SparsificationCurve, risk_coverage, selective_metrics, sparsification
from probmetric.evaluation.settings import EvaluationSettings
from probmetric.evaluation.statistics import (
    PairedResult,
    bootstrap_interval,
    holm,
    image_variance,
    mean_interval,
    paired_test,
    pairwise_tests,
    seeds_needed,
)
from probmetric.evaluation.structure import structure_metrics
from probmetric.evaluation.temperature import fit_temperature, scaled_probabilities
from probmetric.evaluation.transport import proxy_transport

__all__ = [
    "Certificate",
    "CertificateError",
    "EvaluationSettings",
    "Gallery",
    "GalleryIndex",
    "Neighbours",
    "PRight",
    "PairedResult",
    "Reliability",
    "SparsificationCurve",
    "added_auroc",
    "agreement",
    "auroc",
    "bootstrap_interval",
    "calibration_error",
    "certify",
    "classification_metrics",
    "classwise_calibration_error",
    "clustering_metrics",
    "evaluate_run",
    "fit_p_right",
    "fit_temperature",
    "holm",
    "image_variance",
    "match_scores",
    "mean_interval",
    "nearest_neighbours",
    "neighbour_votes",
    "ood_metrics",
    "p_right_metrics",
    "paired_test",
    "pairwise_tests",
    "proxy_transport",
    "reliability",
    "retrieval_calibration",
    "retrieval_metrics",
    "retrieval_per_query",
    "risk_coverage",
    "roc_curve",
    "sampled_retrieval_metrics",
    "scaled_probabilities",
    "seeds_needed",
    "selective_metrics",
    "sparsification",
    "spearman",
    "structure_metrics",
    "summarize",
]
