"""Say whether an answer is right, and how often answers are wrong: scores, P(right), certificates, monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.trust.batch import Selection, match_e_values, select_by_e_values, select_matches
    from probmetric.trust.certificates import Certificate, CertificateError, certify, class_importance
    from probmetric.trust.copies import burst_sentence, copies_of, copy_groups, distinct
    from probmetric.trust.drift import Monitor, monitor
    from probmetric.trust.labels import SuspectedLabels, contradictory_copies, suspect_labels
    from probmetric.trust.p_right import PRight, added_auroc, fit_p_right, p_right_metrics
    from probmetric.trust.pairs import PairCertificate, certify_pairs
    from probmetric.trust.sets import CoverageSets, coverage_sets
    from probmetric.trust.spot_check import SpotChecks, checks_needed, spot_checks
    from probmetric.trust.strangers import StrangerCertificate, certify_strangers, fnir_at_fpir, identification_rates

__all__ = [
    "Certificate",
    "CertificateError",
    "CoverageSets",
    "Monitor",
    "PRight",
    "PairCertificate",
    "Selection",
    "SpotChecks",
    "StrangerCertificate",
    "SuspectedLabels",
    "added_auroc",
    "burst_sentence",
    "certify",
    "certify_pairs",
    "certify_strangers",
    "checks_needed",
    "class_importance",
    "contradictory_copies",
    "copies_of",
    "copy_groups",
    "coverage_sets",
    "distinct",
    "fit_p_right",
    "fnir_at_fpir",
    "identification_rates",
    "match_e_values",
    "monitor",
    "p_right_metrics",
    "select_by_e_values",
    "select_matches",
    "spot_checks",
    "suspect_labels",
]

__getattr__ = exported(__name__)
