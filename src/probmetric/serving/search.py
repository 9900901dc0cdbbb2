"""Turn a match record into the answers of a gallery: the images shown, how sure they are, which are withheld."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probmetric.errors import ServingError
from probmetric.io import cell_text
from probmetric.metrics import arrays
from probmetric.reporting.words import chance_words
from probmetric.retrieval.match import Match as MatchRecord
from probmetric.trust.certificates import Certificate, check_shares
from probmetric.trust.copies import FEW, find_themselves

UNSURE = "less sure than {:.4g} % of the validation images"
STRANGER = "a stranger: farther from the gallery than its images are from each other"
HELD = "the gallery holds this picture (P(right) is for pictures that it does not hold)"
UNCERTIFIED = "above the certified doubt: more than {:g} of such answers could be wrong"


@dataclass(frozen=True)
class Match:
    """A gallery image: its path, its class ("" where none is known) and its cosine with the image asked about."""

    path: str
    class_name: str
    similarity: float


@dataclass(frozen=True)
class Answer:
    """The answer for one image.

    Attributes:
        image: path of the file, or a name such as "image 3" for an image without a file.
        matches: the nearest gallery images, nearest first; also if the answer is withheld.
        uncertainty: the model's uncertainty of the image; higher is less sure.
        doubt: share of the run's validation images that were surer; None if the model has no reference.
        p_right: probability that the nearest image has the right class; None if the gallery cannot tell.
        certified_doubt: score that the certificate uses, 1 - P(right) or another; None without a risk.
        lonelier: share of the gallery's images that are at least as far from their nearest other image as this one is;
            near 0 for strangers. None if not computed.
        withheld: whether the answer should not be used.
        reason: why it is withheld; "" if it is not.
        note: says that the gallery holds this picture, if it does.
    """

    image: str
    matches: tuple[Match, ...]
    uncertainty: float
    doubt: float | None = None
    p_right: float | None = None
    certified_doubt: float | None = None
    lonelier: float | None = None
    withheld: bool = False
    reason: str = ""
    note: str = ""


@dataclass(frozen=True)
class Rules:
    """Which answers are given; the others are withheld.

    Attributes:
        risk: largest share of wrong answers among those given; a certificate of the gallery (`Gallery.certify`) then
            decides. Or the certificate itself.
        confidence: confidence that this certificate needs, if `risk` is a share.
        withhold: withhold the answer if more than this share of the validation images was surer.
        strangers: withhold the answer if the image is farther from the gallery than all but this share of its images
            are from each other, such as 0.01.
        any_image: also answer images that do not look like any of the gallery's (`looks`).
    """

    risk: float | Certificate | None = None
    confidence: float = 0.9
    withhold: float = 1.0
    strangers: float = 0.0
    any_image: bool = False

    def __post_init__(self) -> None:
        risk = 0.5 if self.risk is None or isinstance(self.risk, Certificate) else self.risk
        for name in ("withhold", "strangers"):
            arrays.check_number(getattr(self, name), name)
            if not 0 <= getattr(self, name) <= 1:
                raise ServingError(f"{name} is {getattr(self, name):g}; it is a share of images, 0 to 1.")
        check_shares(risk=risk, confidence=self.confidence)


@dataclass(frozen=True)
class Queries:
    """The Q images of a search.

    Attributes:
        names: their names (Q).
        record: unit embeddings `mean` (Q, M) and `uncertainty` (Q,).
        looks: pixel statistics (Q, L), see `looks`.
        doubt: share of the run's validation images that were surer (Q,); None without a reference.
    """

    names: Sequence[str]
    record: Mapping[str, np.ndarray]
    looks: np.ndarray
    doubt: np.ndarray | None = None


def answers(
    queries: Queries,
    match: MatchRecord,
    k: int,
    names: tuple[Sequence[str], Sequence[str]],
    shares: Mapping[str, np.ndarray | None],
    reasons: Sequence[Sequence[str]],
) -> list[Answer]:
    """Return the answer to each query.

    Args:
        queries: the images asked about.
        match: the match record of the queries.
        k: number of nearest images to show.
        names: path and class of every image of the gallery.
        shares: attribute of `Answer` -> its value for each query (Q,).
        reasons: lists (Q,) of reasons to withhold an answer, "" for no reason; an empty list withholds no answer.
    """
    paths, class_names = names
    answered = []
    held = find_themselves(match.similarity, queries.record["mean"].shape[1] if "mean" in queries.record else FEW)
    for row, name in enumerate(queries.names):
        reason = _joined(*(each[row] for each in reasons if each))
        values = {key: None if share is None else float(share[row]) for key, share in shares.items()}
        nearest = zip(match.indices[row, :k], match.similarity[row, :k], strict=True)
        matches = tuple(Match(paths[image], class_names[image], float(cosine)) for image, cosine in nearest)
        uncertainty = float(queries.record["uncertainty"][row])
        note = HELD if held[row] else ""
        answered.append(Answer(name, matches, uncertainty, **values, withheld=bool(reason), reason=reason, note=note))
    return answered


def _joined(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))


def withheld(
    rules: Rules,
    certificate: Certificate | None,
    certified: np.ndarray | None,
    doubt: np.ndarray | None,
    lonelier: np.ndarray | None,
) -> list[list[str]]:
    """Return lists (Q,) of the reasons why certificate and rules withhold answers; a list is empty if its rule is off.

    Args:
        rules: which answers are given.
        certificate: decides if the rules name a risk.
        certified: the doubt that the certificate uses (Q,).
        doubt: share of the validation images that were surer (Q,).
        lonelier: as in `Answer` (Q,).
    """
    reasons: list[list[str]] = []
    if certificate is not None:
        unsure = UNCERTIFIED.format(certificate.risk)
        reasons.append(["" if allowed else unsure for allowed in certificate.answers(certified)])
    if doubt is not None:
        unsure = UNSURE.format(100 * rules.withhold)
        reasons.append([unsure if share > rules.withhold else "" for share in doubt.tolist()])
    if lonelier is not None:
        reasons.append([STRANGER if share < rules.strangers else "" for share in lonelier.tolist()])
    return reasons


def as_text(answers: Sequence[Answer]) -> str:
    """Return a paragraph per image, for reading."""
    lines = []
    for answer in answers:
        doubt = "" if answer.doubt is None else f"less sure than {100 * answer.doubt:.0f} % of the validation images; "
        verdict = _joined(answer.note, f"answer withheld: {answer.reason}" if answer.withheld else "nearest:")
        right = "" if answer.p_right is None else f"right with probability {chance_words(answer.p_right)}; "
        lines.append(f"{answer.image}   {right}{doubt}{verdict}")
        shown = () if answer.withheld else answer.matches
        lines += [f"  {match.similarity:6.3f}  {match.class_name}  ({match.path})" for match in shown]
    return "\n".join(line.replace("\n", "\\n") for line in lines)  # a break in a name could fake an answer


def as_csv(answers: Sequence[Answer], groups: Sequence[str] | None = None) -> str:
    """Return one row per image and match, for programs; withheld answers are marked, not left out.

    Shares and doubts have all digits, since `probmetric monitor` compares them with those of the certificate. `groups`
    (N,) becomes the column `group`, for `probmetric monitor --group group`. A name that a spreadsheet would read as a
    formula gets a quote in front.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    nearest = ["withheld", "reason", "rank", "similarity", "class_name", "path"]
    head = ["image", "doubt", "p_right", *nearest, "certified_doubt"]
    writer.writerow(head if groups is None else [*head, "group"])
    for number, answer in enumerate(answers):
        group = [] if groups is None else [cell_text(groups[number])]
        shares = (answer.doubt, answer.p_right, answer.certified_doubt)
        doubt, p_right, certified = ("" if share is None else repr(share) for share in shares)
        reason = _joined(answer.note, answer.reason)
        for rank, match in enumerate(answer.matches, 1):
            place = [rank, f"{match.similarity:.6f}", cell_text(match.class_name), cell_text(match.path)]
            row = [cell_text(answer.image), doubt, p_right, int(answer.withheld), reason, *place, certified]
            writer.writerow([*row, *group])
    return text.getvalue()
