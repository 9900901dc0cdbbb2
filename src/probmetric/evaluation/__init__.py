"""Evaluation of probabilistic image embeddings: pure functions on arrays.

NumPy arrays and torch tensors go in, plain numbers come out. Importing this package loads NumPy only; faiss, SciPy and
torch are imported by the functions that need them. docs/evaluation.md defines every metric, with its source and its
direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.evaluation.calibration import (
        Reliability,
        calibration_error,
        classwise_calibration_error,
        reliability,
    )
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

__getattr__ = exported(
    __name__,
    {
        "Reliability": "calibration",
        "calibration_error": "calibration",
        "classwise_calibration_error": "calibration",
        "reliability": "calibration",
        "Certificate": "certificates",
        "CertificateError": "certificates",
        "certify": "certificates",
        "classification_metrics": "classification",
        "agreement": "clustering",
        "clustering_metrics": "clustering",
        "spearman": "correlation",
        "evaluate_run": "evaluator",
        "Gallery": "gallery",
        "GalleryIndex": "gallery",
        "match_scores": "match",
        "Neighbours": "neighbours",
        "nearest_neighbours": "neighbours",
        "auroc": "ood",
        "ood_metrics": "ood",
        "roc_curve": "ood",
        "PRight": "p_right",
        "added_auroc": "p_right",
        "fit_p_right": "p_right",
        "p_right_metrics": "p_right",
        "retrieval_metrics": "retrieval",
        "retrieval_per_query": "retrieval",
        "summarize": "retrieval",
        "neighbour_votes": "sampled",
        "retrieval_calibration": "sampled",
        "sampled_retrieval_metrics": "sampled",
        "SparsificationCurve": "selective",
        "risk_coverage": "selective",
        "selective_metrics": "selective",
        "sparsification": "selective",
        "EvaluationSettings": "settings",
        "PairedResult": "statistics",
        "bootstrap_interval": "statistics",
        "holm": "statistics",
        "image_variance": "statistics",
        "mean_interval": "statistics",
        "paired_test": "statistics",
        "pairwise_tests": "statistics",
        "seeds_needed": "statistics",
        "structure_metrics": "structure",
        "fit_temperature": "temperature",
        "scaled_probabilities": "temperature",
        "proxy_transport": "transport",
    },
)
