"""Test continuously whether the doubts of answers are still those of calibration: has the certificate expired?

Each query gets a p-value among all doubts seen so far, calibration first: p_n = (#{d_i > d_n} + U (1 + #{d_i = d_n})) /
(n + 1), U uniform. As long as queries and calibration are exchangeable, the p_n are independent and uniform, for every
distribution and without end (Vovk, Gammerman and Shafer 2005, online conformal prediction). A comparison with the
calibration set alone would in time give an alarm for that set's own sampling error.

The change may come at any query. For bets f_k, densities on [0, 1],

    R_k(n) = (R_k(n - 1) + 1) f_k(p_n),   R(n) = mean over k of R_k(n)        (Shiryaev-Roberts; Shin et al. 2024)

has mean n without a change. So the chance of R(n) >= A among the first N queries is at most N / A, and the mean number
of queries to a false alarm is at least A. Bets are beta densities. Those with more mass at small p gain when doubts
rise; some of them gain when only the middle fills, because blurred images and strangers get doubts like those of the
worst known queries, not larger ones. Their mirror images gain when doubts fall, three others when doubts only gather or
scatter.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy

from probmetric.io import FileError, cell_text, read_csv
from probmetric.metrics import arrays
from probmetric.metrics.arrays import Array, Bools, Doubles
from probmetric.trust.certificates import Certificate, CertificateError, first_of_each

RISEN = ((0.4, 1.0), (0.7, 1.0), (1.0, 1.5), (1.0, 2.0), (1.0, 3.0), (0.7, 3.0), (1.5, 2.0))
BETS = (*RISEN, *((b, a) for a, b in RISEN), (1.5, 1.5), (3.0, 3.0), (0.7, 0.7))
LEAST = 50
PATIENCE = 100_000
SHARES = ("p_right", "doubt")
WHOLE = re.compile(r"('?-?\d+)\.0")  # as pandas writes whole numbers beside empty cells


Way = Literal["rose", "fell", "changed"]


@dataclass(frozen=True)
class Alarm:
    """Hold the first `query`, from 1, at which the evidence reached the limit, and what the `doubts` did by then."""

    query: int
    doubts: Way


@dataclass(frozen=True)
class Report:
    """Report whether the doubts of answers still fit their certificate; `alarm` is None as long as they do."""

    queries: int
    evidence: float
    alarm: Alarm | None

    @property
    def text(self) -> str:
        """The report in one line."""
        if self.alarm is None:
            return f"{self.queries} queries, no change found; evidence {self.evidence:.2g} (1 is an alarm)"
        return f"{self.queries} queries; the doubts {self.alarm.doubts}: alarm at query {self.alarm.query}"


def monitor(reference: Any, doubt: Any, *, patience: float = PATIENCE, groups: Any = None, seed: int = 0) -> Report:
    """Tell whether the doubts of answers are still those of calibration.

    Args:
        reference: doubts (V,) of the answers that made the certificate, `Certificate.reference`. If they are of few
            classes and the queries of other ones, that is a change.
        doubt: doubts (Q,) of answers, in the order in which the queries came.
        patience: least mean number of clean queries before a false alarm.
        groups: (Q,) source of each query (session, person), where queries come in bursts. The first query of each
            source counts, and the reference should hold the first of each source too.
        seed: seed of the draws that break ties.

    Raises:
        CertificateError: too few calibration doubts, or a patience out of range.
        ValueError: doubts that are not finite.

    Examples:
        >>> generator = np.random.default_rng(0)
        >>> print(monitor(generator.random(500), generator.random(300) ** 0.5).text)
        300 queries; the doubts rose: alarm at query 93
    """
    running = Monitor(reference, patience=patience, seed=seed)
    values = arrays.vector(doubt, "doubt")
    first = first_of_each(groups, len(values))
    alarm = running.watch(values[first])
    if alarm is not None:
        alarm = Alarm(int(first[alarm.query - 1]) + 1, alarm.doubts)
    return Report(len(values), running.evidence, alarm)


def logged_rows(log: str | Path, *columns: str) -> list[dict[str, str]]:
    """Read the rows of answers from a CSV with one row per query, or per match (`search --csv`; rank 1 counts).

    Raises:
        FileError: the log is damaged, lacks one of the `columns`, or has no row of rank 1.
    """
    names, rows = read_csv(log, "name the CSV that `probmetric search --csv` wrote")
    for column in columns:
        if column not in names:
            raise FileError(f"{log} has no column {column!r}; it has {', '.join(names)}.")
    if not rows:
        raise FileError(f"{log} has no answers, only a head.")
    first = [row for row in rows if _compared(row.get("rank", "1")) == "1"]
    if not first:
        raise FileError(f"{log} has no answer of rank 1, only of {rows[0]['rank']!r} and the like.")
    return first


def logged_groups(log: str | Path, column: str) -> Array:
    """Read the group (Q,) of each query from a column of a log (see `logged_rows`).

    Raises:
        FileError: the log is damaged, has no such column, or an empty cell in it.
    """
    groups = np.array([row[column] for row in logged_rows(log, column)])
    empty = np.flatnonzero([not name for name in arrays.class_names_of(groups)])
    if len(empty):
        raise FileError(
            f"{log}: query {empty[0] + 1} has nothing in the column {column!r}, {len(empty)} of {len(groups)} in all; "
            "name the source of each (queries of one source count once)."
        )
    return groups


def logged_doubts(log: str | Path, column: str, *, shares: bool = False) -> Doubles:
    """Read the doubts (Q,) of answers from a log (see `logged_rows`).

    Args:
        log: the file.
        column: `p_right`, whose complement is the doubt, or the doubt itself.
        shares: whether the doubts must be from 0 to 1; `p_right` and `doubt` always must.

    Raises:
        FileError: the log is damaged or lacks the column; a value is not a number, or not from 0 to 1 where it must be.
    """
    values = []
    expected = "numbers from 0 to 1" if shares or column in SHARES else "numbers"
    for query, row in enumerate(logged_rows(log, column), 1):
        try:
            values.append(float(row[column].replace(",", ".")))
        except ValueError:
            values.append(math.nan)
        if not math.isfinite(values[-1]) or (expected != "numbers" and not 0 <= values[-1] <= 1):
            raise FileError(
                f"{log}: query {query} has {row[column]!r} in column {column!r}; expected {expected}, as "
                "`probmetric search --csv` writes (certified_doubt: with --risk)."
            )
    return 1 - np.array(values) if column == "p_right" else np.array(values)


def logged_checks(log: str | Path, truth: str, certificate: Certificate, doubt: Any) -> tuple[Bools, Bools]:
    """Return which answers (Q,) of a log were checked, and whether the N checked ones (N,) are wrong.

    Args:
        log: a file with the column `class_name`, the answer, and the column `truth`.
        truth: column of the true class, empty where nobody looked it up.
        certificate: answers that it withholds do not count, nor do those withheld in the log.
        doubt: (Q,) doubt of each answer, by which the certificate decides.

    Raises:
        FileError: the log is damaged, lacks a column, or no answer was checked.
    """
    rows = logged_rows(log, truth, "class_name")
    truths, names = ([_compared(row[column]) for row in rows] for column in (truth, "class_name"))
    answered = certificate.answers(doubt) & np.array([_compared(row.get("withheld", "0")) != "1" for row in rows])
    checked = answered & np.array([name != "" for name in truths])
    if not checked.any():
        raise FileError(f"{log}: no answer given has a class in the column {truth!r}; check some, drawn at random.")
    return checked, np.array([first != second for first, second in zip(truths, names, strict=True)])[checked]


def _compared(cell: str) -> str:
    """Return a cell in a form that can be compared with cells of other programs."""
    name = cell_text(arrays.class_names_of([cell])[0])
    whole = WHOLE.fullmatch(name)
    return whole[1] if whole else name


class Monitor:
    """Run the test: `update` takes one doubt after the other; `alarm` is set once and stays."""

    def __init__(self, reference: Any, *, patience: float = PATIENCE, seed: int = 0) -> None:
        """Begin from the doubts `reference` (V,) of the calibration queries.

        Args:
            reference: doubts of the answers that made the certificate.
            patience: least mean number of clean queries before a false alarm.
            seed: seed of the draws that break ties.

        Raises:
            CertificateError: fewer than 50 doubts, or a patience below 1 or infinite.
            ValueError: a doubt that is not finite.
        """
        count = arrays.to_numpy(reference).size
        if count < LEAST:
            raise CertificateError(
                f"reference has {count} doubts; a change can be told from at least {LEAST}. Certify again "
                "with more queries."
            )
        values = arrays.vector(reference, "reference")
        arrays.check_number(patience, "patience")
        if not 1 <= patience < math.inf:
            raise CertificateError(f"patience is {patience}; it is a number of queries, at least 1 and finite.")
        self.patience, self.queries = patience, 0
        self.alarm: Alarm | None = None
        self._seen = sorted(values.tolist())
        self._generator = arrays.generator(seed)
        self._bets = np.array(BETS) - 1.0
        self._scale = -scipy.special.betaln(*np.array(BETS).T)
        self._logs = np.full(len(BETS), -np.inf)

    @property
    def evidence(self) -> float:
        """R(n) / patience; 1 is an alarm."""
        highest = float(self._logs.max())
        if highest == -math.inf:
            return 0.0
        total = highest + math.log(float(np.exp(self._logs - highest).mean()))
        return math.exp(min(total - math.log(self.patience), 700.0))

    def update(self, doubt: float) -> float:
        """Take the doubt of the next answer; return the evidence.

        Raises:
            ValueError: a doubt that is not finite.
        """
        if not math.isfinite(doubt):
            raise ValueError(f"the doubt of query {self.queries + 1} is {doubt}; expected a finite number.")
        p = min(max(self._p_value(float(doubt)), 1e-12), 1 - 1e-12)
        self.queries += 1
        gained = self._scale + self._bets @ np.array([math.log(p), math.log1p(-p)])
        self._logs = np.logaddexp(self._logs, 0.0) + gained
        if self.alarm is None and self.evidence >= 1:
            self.alarm = Alarm(self.queries, _way(*BETS[int(self._logs.argmax())]))
        return self.evidence

    def watch(self, doubts: Iterable[float]) -> Alarm | None:
        """Take several doubts up to the first alarm; return the alarm."""
        for doubt in doubts:
            if self.alarm is not None:
                break
            self.update(float(doubt))
        return self.alarm

    def _p_value(self, doubt: float) -> float:
        """Return the p-value of the next doubt among those seen, which it then joins."""
        left, right = bisect.bisect_left(self._seen, doubt), bisect.bisect_right(self._seen, doubt)
        above, equal = len(self._seen) - right, right - left
        p = (above + self._generator.random() * (equal + 1)) / (len(self._seen) + 1)
        self._seen.insert(left, doubt)
        return float(p)


def _way(a: float, b: float) -> Way:
    """Return how the doubts changed if the beta density with these parameters gained most."""
    if a == b:
        return "changed"
    return "rose" if a < b else "fell"
