"""A certificate in words, as Markdown."""

from __future__ import annotations

from probmetric.trust.certificates import EVERYTHING, Certificate


def page(certificate: Certificate, whose: str) -> str:
    """What the certificate promises, for whom, and what it was made from."""
    unit = "classes, drawn independently" if certificate.unit == "group" else "queries, drawn independently"
    rows = {
        "gallery": f"`{certificate.gallery[:16]}`, {certificate.gallery_classes} classes",
        "weights": f"`{certificate.weights[:16]}`",
        "calibration set": f"`{certificate.calibration[:16]}`, {certificate.queries} queries",
        "decides by": certificate.score,
        "threshold": _threshold(certificate),
        "answered in calibration": f"{certificate.answered} ({100 * certificate.coverage:.1f} %)",
        "wrong among those": str(certificate.errors),
        "upper bound of the risk": f"{100 * certificate.risk_bound:.2f} %",
        "what counts as one draw": unit,
        "valid for": certificate.valid_for,
    }
    lines = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    return (
        f"# Certificate of {whose}\n\n{_promise(certificate)}\n\n| | |\n|---|---|\n{lines}\n\n"
        "It says nothing about another gallery, other weights or other queries: `probmetric monitor` says when "
        "queries change. Confidence is over calibration sets: at confidence 90 % one of ten may promise too much.\n"
    )


def _promise(certificate: Certificate) -> str:
    wanted = f"{100 * certificate.risk:g} %"
    if certificate.threshold is None:
        return (
            f"**Nothing is certified.** No threshold was shown to let at most {wanted} wrong answers through. "
            "More calibration queries, a higher risk, or a better model would be needed."
        )
    return (
        f"Of the answers given, **at most {wanted} are wrong, with confidence {100 * certificate.confidence:g} %**; "
        f"{100 * certificate.coverage:.0f} % of such queries are answered."
    )


def _threshold(certificate: Certificate) -> str:
    if certificate.threshold is None:
        return "none"
    return "none is needed" if certificate.threshold == EVERYTHING else f"{certificate.threshold:.6g}"
