"""Commands for the certificates of runs, and for certificates in use."""

from __future__ import annotations

import argparse

from probmetric.io import FileError
from probmetric.runs import steps
from probmetric.trust.certificates import Certificate
from probmetric.trust.monitor import monitored


def certificate(options: argparse.Namespace) -> None:
    """`probmetric certificate`."""
    print(
        steps.certify(
            options.run, risk=options.risk, confidence=options.confidence, score=options.score, unit=options.unit
        )
    )


def monitor(options: argparse.Namespace) -> None:
    """`probmetric monitor`."""
    report = monitored(
        Certificate.load(options.certificate),
        options.log,
        column=options.column,
        patience=options.patience,
        ordered=not options.unordered,
    )
    print(report.text)
    if report.expired:
        raise FileError(report.advice)
