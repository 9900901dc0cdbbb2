"""The certificates of runs: what they promise of 100 questions, and in words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from urllib.parse import quote

from probmetric.io import present
from probmetric.reporting.experiment import ReportContext
from probmetric.reporting.words import group_title
from probmetric.runs.folder import RunFolder
from probmetric.trust.certificates import Certificate


@dataclass(frozen=True)
class Promise:
    """What the certificates of a method's seeds promise, of 100 questions.

    Attributes:
        answered: how many are answered; 0 where nothing can be certified.
        wrong: how many of these answers are wrong.
        risk: largest share of wrong answers among those given.
        confidence: chance that this holds.
    """

    answered: float
    wrong: float
    risk: float
    confidence: float

    @classmethod
    def of(cls, runs: Sequence[RunFolder]) -> Promise | None:
        """Return the mean over the runs that hold a certificate of their own embeddings; None without one."""
        made = [certificate for run in runs if (certificate := certificate_of(run))]
        if not made:
            return None
        answered, wrong = (100 * fmean(getattr(c, name) / c.queries for c in made) for name in ("answered", "errors"))
        return cls(answered, wrong, max(c.risk for c in made), min(c.confidence for c in made))

    @property
    def numbers(self) -> str:
        """Return words such as `77 are answered, 4 of them wrong`."""
        wrong = f"{self.wrong:.2g}" if self.wrong < 1.5 else f"{self.wrong:.0f}"
        return f"{self.answered:.0f} are answered, {wrong} of them wrong"


def certificate_of(run: RunFolder) -> Certificate | None:
    """Return a run's certificate; None without one, or where it is of embeddings that are no more."""
    if not present(run.certificate_file):
        return None
    certificate = Certificate.load(run.certificate_file)
    return certificate if certificate.gallery == run.digest_of(run.embeddings_file("test")) else None


@dataclass(frozen=True)
class Held:
    """A run's certificate in words, and its page, relative to the report."""

    seed: int
    text: str
    page: str


def certificates(context: ReportContext) -> dict[str, dict[str, list[Held]]]:
    """Return title of the dataset -> label of the method -> certificates of its runs, by seed."""
    held: dict[str, dict[str, list[Held]]] = {}
    for run in sorted(context.runs, key=lambda run: run.key):
        if present(run.certificate_file):
            methods = held.setdefault(group_title(run.key.group), {})
            page = quote(os.path.relpath(run.certificate_page, context.folder), safe="/+=")
            methods.setdefault(context.label(run.key.variant), []).append(Held(run.key.seed, _words(run), page))
    return held


def _words(run: RunFolder) -> str:
    certificate = certificate_of(run)
    if certificate is None:
        return "of embeddings that are no more; certify again"
    wanted = f"{100 * certificate.risk:g} % of the answers given are wrong"
    if certificate.threshold is None:
        return f"nothing was certified: more than {wanted} at every doubt, or too few images to tell"
    return (
        f"at most {wanted}, with confidence {100 * certificate.confidence:g} %; {100 * certificate.coverage:.0f} % of "
        f"the queries are answered, by {certificate.score.replace('_', ' ')}; valid for {certificate.valid_for}"
    )
