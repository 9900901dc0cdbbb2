"""Commands for the certificates of runs, and for certificates in use."""

from __future__ import annotations

import argparse

import numpy as np

from probmetric.io import FileError
from probmetric.runs import steps
from probmetric.trust import drift
from probmetric.trust.certificates import Certificate
from probmetric.trust.drift import logged_doubts


def certificate(options: argparse.Namespace) -> None:
    """Run `probmetric certificate`."""
    print(
        steps.certify(
            options.run, risk=options.risk, confidence=options.confidence, score=options.score, unit=options.unit
        )
    )


def monitor(options: argparse.Namespace) -> None:
    """Run `probmetric monitor`."""
    reference = Certificate.load(options.certificate).reference
    doubts = logged_doubts(options.log, options.column)
    if options.unordered:  # a folder lists its images class by class, which is no order that calibration has
        doubts = np.random.default_rng(0).permutation(doubts)
    report = drift.monitor(reference, doubts, patience=options.patience)
    print(report.text)
    if report.alarm:
        raise FileError(
            "the certificate has expired: these queries are not like those it was made from. Look at the answers since "
            "then (other cameras, other classes, another gallery?), label some and certify again."
        )
