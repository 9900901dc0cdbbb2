"""Write a certificate in words, as Markdown."""

from __future__ import annotations

from probmetric.trust.certificates import EVERYTHING, Certificate

AT_ONCE = (
    "Label all of them before you certify again, because one of many attempts passes by chance. To make four attempts, "
    "give `--tries 4` each time; each then asks for more queries. "
)


def needed(certificate: Certificate) -> str:
    """Return in words how many calibration queries this risk would need, where nothing is certified."""
    if not certificate.needed:
        of = "" if certificate.unit == "query" else ", of other groups (people, sessions; else classes),"
        return f"More calibration queries{of} may help. {AT_ONCE}"
    return (
        f"About {certificate.needed} calibration queries are needed, if their answers are wrong as often as those of "
        f"these {certificate.queries}. {AT_ONCE}"
    )


def _unit(certificate: Certificate) -> str:
    """Return in words what is drawn."""
    if certificate.unit == "query":
        return "queries"
    if "in groups" in certificate.valid_for:
        return "groups"
    return "queries, and classes of strangers" if "strangers of classes" in certificate.valid_for else "classes"


def page(certificate: Certificate, of: str) -> str:
    """Return what the certificate of a run or gallery, called `of`, promises, for which queries, and its data."""
    share, threshold = f"{100 * certificate.risk:g} %", certificate.threshold
    if threshold is None:
        promise = (
            f"**Nothing is certified.** At no threshold is it shown that at most {share} of the answers given are "
            f"wrong. {needed(certificate)}A higher risk, or a better model, may be certified with as many."
        )
    else:
        promise = (
            f"Of the answers given, **at most {share} are wrong, with confidence {100 * certificate.confidence:g} %**; "
            f"{100 * certificate.coverage:.0f} % of such queries are answered."
        )
    limit = "none" if threshold is None else f"{threshold:.6g}"
    rows = {
        "gallery": f"`{certificate.gallery[:16]}`, {certificate.gallery_classes} classes",
        "weights": f"`{certificate.weights[:16]}`",
        "calibration set": f"`{certificate.calibration[:16]}`, {certificate.queries} queries",
        "decides by": certificate.score,
        "threshold": limit if threshold is None or threshold < EVERYTHING else "none is needed",
        "answered in calibration": f"{certificate.answered} ({100 * certificate.coverage:.1f} %)",
        "wrong among those": str(certificate.errors),
        "upper bound of the risk for a threshold fixed before (no promise)": f"{100 * certificate.risk_bound:.2f} %",
        "what counts as one draw": f"{_unit(certificate)}, drawn independently",
        "valid for": certificate.valid_for,
    }
    lines = "\n".join(f"| {name} | {text} |" for name, text in rows.items())
    return (
        f"# Certificate of {of}\n\n{promise}\n\n| | |\n|---|---|\n{lines}\n\n"
        "It holds for no other gallery, weights or kind of queries; `probmetric monitor` says when queries change. "
        "Confidence is over calibration sets: at 90 %, one certificate in ten may promise too much.\n"
    )
