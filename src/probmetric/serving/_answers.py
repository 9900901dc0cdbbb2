"""What a search answers, as records, for reading and for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass


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


def as_text(answers: Sequence[Answer]) -> str:
    """A paragraph per image, for reading."""
    lines = []
    for answer in answers:
        doubt = "" if answer.doubt is None else f"less sure than {100 * answer.doubt:.0f} % of the validation images; "
        verdict = f"answer withheld: {answer.reason}" if answer.withheld else "nearest:"
        right = "" if answer.p_right is None else f"right with probability {answer.p_right:.2f}; "
        lines.append(f"{answer.image}   {right}{doubt}{verdict}")
        shown = () if answer.withheld else answer.matches
        lines += [f"  {match.similarity:6.3f}  {match.class_name}  ({match.path})" for match in shown]
    return "\n".join(line.replace("\n", "\\n") for line in lines)  # a name may hold one, and pass for an answer


def as_csv(answers: Sequence[Answer]) -> str:
    """One row per image and match, for programs; withheld answers are marked, not left out."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["image", "doubt", "p_right", "withheld", "reason", "rank", "similarity", "class_name", "path"]
    writer.writerow(head)
    for answer in answers:
        shares = ["" if share is None else f"{share:.4f}" for share in (answer.doubt, answer.p_right)]
        for rank, match in enumerate(answer.matches, 1):
            place = [rank, f"{match.similarity:.6f}", match.class_name, match.path]
            writer.writerow([answer.image, *shares, int(answer.withheld), answer.reason, *place])
    return text.getvalue()
