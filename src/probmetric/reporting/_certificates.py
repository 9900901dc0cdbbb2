"""Which certificates the runs of a report hold: what the answers of their own galleries are certified for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from probmetric.io import content_digest, present
from probmetric.reporting._words import group_title
from probmetric.trust.certificates import Certificate

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext
    from probmetric.runs.folder import RunFolder


@dataclass(frozen=True)
class Held:
    """A run's certificate in words, and its page, relative to the report."""

    seed: int
    text: str
    page: str


def certificates(context: ReportContext) -> dict[str, dict[str, list[Held]]]:
    """Title of the dataset -> label of the method -> certificates of its runs, by seed."""
    found: dict[str, dict[str, list[Held]]] = {}
    for run in sorted(context.runs, key=lambda run: run.key):
        if present(run.certificate_file):
            mine = found.setdefault(group_title(run.key.data), {}).setdefault(context.label(run.key.variant), [])
            page = quote(os.path.relpath(run.certificate_page, context.folder), safe="/+=")
            mine.append(Held(run.key.seed, _words(run), page))
    return found


def _words(run: RunFolder) -> str:
    certificate = Certificate.load(run.certificate_file)
    if certificate.gallery != content_digest(run.embeddings_file("test")):
        return "of embeddings that are no more; certify again"
    wanted = f"{100 * certificate.risk:g} % of the answers given are wrong"
    if certificate.threshold is None:
        return f"nothing was certified: more than {wanted} at every doubt, or too few images to tell"
    return (
        f"at most {wanted}, with confidence {100 * certificate.confidence:g} %; {100 * certificate.coverage:.0f} % of "
        f"the queries are answered, by {certificate.score.replace('_', ' ')}; valid for {certificate.valid_for}"
    )
