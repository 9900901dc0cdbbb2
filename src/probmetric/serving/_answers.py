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
        withheld: whether the answer should not be used.
        reason: why it is withheld; "" where it is not.
    """

    image: str
    matches: tuple[Match, ...]
    uncertainty: float
    doubt: float | None = None
    withheld: bool = False
    reason: str = ""


def as_text(answers: Sequence[Answer]) -> str:
    """A paragraph per image, for reading."""
    lines = []
    for answer in answers:
        doubt = "" if answer.doubt is None else f"less sure than {100 * answer.doubt:.0f} % of the validation images; "
        verdict = f"answer withheld: {answer.reason}" if answer.withheld else "nearest:"
        lines.append(f"{answer.image}   {doubt}{verdict}")
        shown = () if answer.withheld else answer.matches
        lines += [f"  {match.similarity:6.3f}  {match.class_name}  ({match.path})" for match in shown]
    return "\n".join(lines)


def as_csv(answers: Sequence[Answer]) -> str:
    """One row per image and match, for programs; withheld answers are marked, not left out."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["image", "doubt", "withheld", "reason", "rank", "similarity", "class_name", "path"]
    writer.writerow(head)
    for answer in answers:
        doubt = "" if answer.doubt is None else f"{answer.doubt:.4f}"
        for rank, match in enumerate(answer.matches, 1):
            place = [rank, f"{match.similarity:.6f}", match.class_name, match.path]
            writer.writerow([answer.image, doubt, int(answer.withheld), answer.reason, *place])
    return text.getvalue()
