"""Answers of a gallery: from one match record to the images shown, how sure they are, and what is withheld."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from probmetric.errors import ServingError
from probmetric.io import cell_text
from probmetric.retrieval.match import Match as MatchRecord
from probmetric.serving.gallery_trust import VOTES, Trust, fitting_certificate
from probmetric.trust.certificates import Certificate
from probmetric.trust.deployed import certified_doubt
from probmetric.trust.p_right import PRight
from probmetric.trust.scores import doubts as doubts_of

UNSURE = "less sure than {:.4g} % of the validation images"
STRANGER = "a stranger: farther from the gallery than its images are from each other"
UNCERTIFIED = "above the certified doubt: more than {:g} of such answers could be wrong"


@dataclass(frozen=True)
class Match:
    """A gallery image: its path, its class ("" where none is known) and its cosine with the image asked about."""

    path: str
    class_name: str
    similarity: float


@dataclass(frozen=True)
class Answer:
    """What was found for one image.

    Attributes:
        image: the file's path, or "image 3" for what has none.
        matches: the nearest gallery images, nearest first; also where the answer is withheld.
        uncertainty: as the model's uncertainty has it; higher is less sure.
        doubt: share of the run's validation images that were surer; None where the model has no reference.
        p_right: probability that the nearest image has the right class; None where the gallery cannot say.
        lonelier: share of the gallery's images as far from their nearest other image as this one is from its nearest;
            near 0 for strangers. None where nobody asked.
        withheld: whether the answer should not be used.
        reason: why it is withheld; "" where it is not.
    """

    image: str
    matches: tuple[Match, ...]
    uncertainty: float
    doubt: float | None = None
    p_right: float | None = None
    lonelier: float | None = None
    withheld: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Rules:
    """Which answers are given; the others are withheld.

    Attributes:
        risk: at most this share of the answers given is wrong, by a certificate of the gallery (`Gallery.certify`).
        confidence: at which the certificate must hold.
        withhold: none for images less sure than this share of the validation images.
        strangers: none for images farther from the gallery than all but this share of its images are from each other,
            such as 0.01.
        any_image: also for images that do not look like any of the gallery's (`looks`).
    """

    risk: float | None = None
    confidence: float = 0.9
    withhold: float = 1.0
    strangers: float = 0.0
    any_image: bool = False

    def __post_init__(self) -> None:
        for name in ("withhold", "strangers"):
            if not 0 <= getattr(self, name) <= 1:
                raise ServingError(f"{name} is {getattr(self, name):g}; it is a share of images, 0 to 1.")
        if self.risk is not None and not 0 < self.risk < 1:
            raise ServingError(f"risk is {self.risk:g}; it is the share of wrong answers allowed, between 0 and 1.")
        if not 0 < self.confidence < 1:
            raise ServingError(f"confidence is {self.confidence:g}; it is a chance, between 0 and 1.")


class Searched(Protocol):
    """What a search needs of a gallery; see `gallery.Gallery`."""

    certificates: list[Certificate]

    @property
    def paths(self) -> Sequence[str]:
        """Names of the images."""
        ...

    @property
    def class_names(self) -> Sequence[str]:
        """Their classes."""
        ...

    @property
    def digest(self) -> str:
        """Digest of the content."""
        ...

    @property
    def model(self) -> str:
        """Digest of the model."""
        ...

    @property
    def knows_p_right(self) -> bool:
        """Whether P(right) was learnt."""
        ...

    @property
    def trust(self) -> Trust:
        """What the images say of the answers."""
        ...

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def match(self, queries: Mapping[str, np.ndarray], k: int) -> MatchRecord:
        """Return the match record of queries."""
        ...

    def unlike(self, looks: np.ndarray) -> list[str]:
        """Return why each image is a stranger."""
        ...


@dataclass(frozen=True)
class Queries:
    """Q images that are asked about.

    Attributes:
        names: what they are called (Q).
        record: unit embeddings `mean` (Q, M) and `uncertainty` (Q,).
        looks: pixel statistics (Q, L), see `looks`.
        doubt: share of the run's validation images that were surer (Q,); None without a reference.
    """

    names: Sequence[str]
    record: Mapping[str, np.ndarray]
    looks: np.ndarray
    doubt: np.ndarray | None = None


def answers(gallery: Searched, queries: Queries, k: int, rules: Rules) -> list[Answer]:
    """Return the k nearest images of each query and whether the answer may be used; the gallery is searched once.

    Raises:
        ServingError: the gallery is empty, or k or a rule cannot be followed.
        CertificateError: no certificate of the gallery fits the risk and confidence asked for.
    """
    if k < 1:
        raise ServingError(f"k is {k}; ask for at least 1 match.")
    if not len(gallery):
        raise ServingError("the gallery is empty; add images first.")
    certificate = certificate_of(gallery, rules)
    match = gallery.match(queries.record, k)
    doubts, p_right = _judged(gallery, match, certificate)
    lonelier = gallery.trust.lonelier(match.similarity[:, 0]) if rules.strangers else None
    reasons = [
        _uncertified(certificate, doubts),
        _where(queries.doubt, lambda share: share > rules.withhold, UNSURE.format(100 * rules.withhold)),
        _where(lonelier, lambda share: share < rules.strangers, STRANGER),
        [] if rules.any_image else gallery.unlike(queries.looks),
    ]
    shares = {"doubt": queries.doubt, "p_right": p_right, "lonelier": lonelier}
    answered = []
    for row, name in enumerate(queries.names):
        reason = "; ".join(filter(None, (each[row] for each in reasons if each)))
        values = {key: None if share is None else float(share[row]) for key, share in shares.items()}
        matches = _shown(gallery, match.indices[row, :k], match.similarity[row, :k])
        uncertainty = float(queries.record["uncertainty"][row])
        answered.append(Answer(name, matches, uncertainty, **values, withheld=bool(reason), reason=reason))
    return answered


def certificate_of(gallery: Searched, rules: Rules) -> Certificate | None:
    """Return the gallery's certificate for the risk and confidence of the rules; None where they ask for none."""
    if rules.risk is None:
        return None
    return fitting_certificate(gallery.certificates, rules.risk, rules.confidence, gallery.digest, gallery.model)


def _judged(
    gallery: Searched, match: MatchRecord, certificate: Certificate | None
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return the answers' scores, score -> (Q,), and P(right) (Q,); nothing if the gallery was never asked for them.

    P(right) is the certificate's where that decides by one, so that `trust.monitor` compares like with like.
    """
    if certificate is None and not gallery.knows_p_right:
        return {}, None
    votes = {name: getattr(match, name)[:, :VOTES] for name in ("similarity", "indices", "classes")}
    scores = {"own": match.query["uncertainty"].astype(np.float64), **doubts_of(replace(match, **votes))}
    by = certificate.p_right if certificate else None
    p_right = PRight.of(by) if by else gallery.trust.p_right
    return scores, None if p_right is None else p_right.probability(scores)


def _uncertified(certificate: Certificate | None, doubts: Mapping[str, np.ndarray]) -> list[str]:
    """Say why each answer is withheld by the certificate, "" where it is given."""
    if certificate is None:
        return []
    certified = certificate.answers(certified_doubt(certificate, doubts))
    return ["" if allowed else UNCERTIFIED.format(certificate.risk) for allowed in certified]


def _where(values: np.ndarray | None, withheld: Callable[[float], bool], reason: str) -> list[str]:
    return [] if values is None else [reason if withheld(value) else "" for value in values.tolist()]


def _shown(gallery: Searched, rows: np.ndarray, cosines: np.ndarray) -> tuple[Match, ...]:
    return tuple(
        Match(gallery.paths[row], gallery.class_names[row], float(cosine))
        for row, cosine in zip(rows, cosines, strict=True)
    )


def as_text(answers: Sequence[Answer]) -> str:
    """Return a paragraph per image, for reading."""
    lines = []
    for answer in answers:
        doubt = "" if answer.doubt is None else f"less sure than {100 * answer.doubt:.0f} % of the validation images; "
        verdict = f"answer withheld: {answer.reason}" if answer.withheld else "nearest:"
        right = "" if answer.p_right is None else f"right with probability {answer.p_right:.2f}; "
        lines.append(f"{answer.image}   {right}{doubt}{verdict}")
        shown = () if answer.withheld else answer.matches
        lines += [f"  {match.similarity:6.3f}  {match.class_name}  ({match.path})" for match in shown]
    return "\n".join(line.replace("\n", "\\n") for line in lines)  # a name may hold one, and pass for an answer


def as_csv(answers: Sequence[Answer], groups: Sequence[str] | None = None) -> str:
    """Return one row per image and match, for programs; withheld answers are marked, not left out.

    What images come from together, `groups` (N,), becomes the column `group`, for `probmetric monitor --group group`. A
    name that a spreadsheet would take for a formula has a quote in front.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["image", "doubt", "p_right", "withheld", "reason", "rank", "similarity", "class_name", "path"]
    writer.writerow(head if groups is None else [*head, "group"])
    for number, answer in enumerate(answers):
        group = [] if groups is None else [cell_text(groups[number])]
        shares = ["" if share is None else f"{share:.4f}" for share in (answer.doubt, answer.p_right)]
        for rank, match in enumerate(answer.matches, 1):
            place = [rank, f"{match.similarity:.6f}", cell_text(match.class_name), cell_text(match.path)]
            writer.writerow([cell_text(answer.image), *shares, int(answer.withheld), answer.reason, *place, *group])
    return text.getvalue()
