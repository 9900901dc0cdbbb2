"""Whether an answer is right, and how often one is wrong who acts on it: scores, P(right), certificates, monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.lazy import exported

if TYPE_CHECKING:
    from probmetric.trust.certificates import Certificate, CertificateError, certify
    from probmetric.trust.p_right import PRight, added_auroc, fit_p_right, p_right_metrics

__all__ = ["Certificate", "CertificateError", "PRight", "added_auroc", "certify", "fit_p_right", "p_right_metrics"]

__getattr__ = exported(
    __name__,
    {
        "Certificate": "certificates",
        "CertificateError": "certificates",
        "certify": "certificates",
        "PRight": "p_right",
        "added_auroc": "p_right",
        "fit_p_right": "p_right",
        "p_right_metrics": "p_right",
    },
)
