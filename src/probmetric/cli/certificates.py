"""Run the commands for certificates of runs, and for certificates in use."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from probmetric.cli.vectors import check_unused
from probmetric.io import FileError
from probmetric.runs import steps
from probmetric.trust import drift
from probmetric.trust.certificates import Certificate, CertificateError
from probmetric.trust.deployed import P_RIGHT
from probmetric.trust.drift import logged_checks, logged_doubts, logged_groups
from probmetric.trust.spot_check import spot_checks


def certificate(options: argparse.Namespace) -> None:
    """Run `probmetric certificate`."""
    rules = {name: getattr(options, name) for name in ("risk", "confidence", "score", "unit", "group")}
    print(steps.certify(options.run, **rules))
    hint = "Reports of this run show it when they are made again: `probmetric report <experiment>`."
    print(hint, file=sys.stderr)


def monitor(options: argparse.Namespace) -> None:
    """Run `probmetric monitor`."""
    if options.labelled:
        unused = {"patience": drift.PATIENCE, "unordered": False}
        check_unused(options, unused, "labelled errors")
    else:
        check_unused(options, {"false_alarms": 0.01}, "doubts, only of --labelled errors")
    certificate = Certificate.load(options.certificate)
    groups = logged_groups(options.log, options.group) if options.group else None
    if groups is not None:
        print(f"{len(np.unique(groups))} groups in the column {options.group!r}")
    by_another = certificate.score not in ("", P_RIGHT)
    if by_another and options.column == P_RIGHT:
        raise CertificateError(
            f"this certificate decides by {certificate.score}, not by P(right): watch the column certified_doubt, "
            "which `probmetric search --risk ... --csv` writes."
        )
    column = options.column or ("certified_doubt" if by_another else P_RIGHT)
    doubts = logged_doubts(options.log, column, shares=not by_another and column == "certified_doubt")
    if options.labelled:
        checked, wrong = logged_checks(options.log, options.labelled, certificate, doubts)
        sources = None if groups is None else groups[checked]
        checks = spot_checks(wrong, risk=certificate.risk, false_alarms=options.false_alarms, groups=sources)
        print(checks.text)
        if checks.alarm:
            raise FileError(
                f"the certificate has expired: more than {certificate.risk:g} of the answers given are wrong. Look at "
                "them (other queries, another gallery, wrong labels?) and certify again with labelled queries of now."
            )
        return
    order = np.arange(len(doubts))
    if options.unordered:  # a folder lists its images class by class, an order that calibration images do not have
        order = np.random.default_rng(0).permutation(len(doubts))
    sources = None if groups is None else groups[order]
    report = drift.monitor(certificate.reference, doubts[order], patience=options.patience, groups=sources)
    print(report.text)
    if report.alarm:
        raise FileError(
            "the certificate has expired: these queries are not like those it was made from. Look at the answers since "
            "then (other cameras, other classes, another gallery?), label some and certify again."
        )
