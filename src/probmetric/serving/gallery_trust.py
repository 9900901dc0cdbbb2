"""Learn how far the answers of a gallery can be trusted (P(right), strangers, certificates), and store it there.

gallery.json                            map from scores to P(right), distances between the gallery's images
certificate-<risk>-<confidence>.json    names the gallery by its digest, and is refused for any other gallery
tries.json                              which scores were tried on which calibration set
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from probmetric.io import FileError, alone, of_kind, present, read_json, signed, unsigned, write_json
from probmetric.retrieval.neighbours import search
from probmetric.trust.answers import Answers
from probmetric.trust.certificates import Certificate, CertificateError
from probmetric.trust.p_right import PRight, fit_p_right

SAMPLE = 1000
TRIES, AGAIN = "tries.json", "make the gallery again (`probmetric index`)"
_TRIES = dict[Literal["tried"], dict[str, dict[str, PositiveInt]]]
FITTED = 0.2  # share of the answers that P(right) is fitted to; the others are certified
VOTES = 10  # nearest images that vote in the scores of an answer, independent of how many are shown


@dataclass(frozen=True)
class Trust:
    """Facts that a gallery knows about its own answers.

    Attributes:
        p_right: map from the scores of an answer to P(right); None if classes are unknown or all answers alike.
        apart: 1 - cosine of gallery images to their nearest other image, sorted, `SAMPLE` at most.
    """

    p_right: PRight | None
    apart: np.ndarray

    def lonelier(self, cosine: np.ndarray) -> np.ndarray:
        """Return the share (Q,) of gallery images that are at least as far from their nearest as a query (`cosine`)."""
        below = np.searchsorted(self.apart, 1.0 - cosine, side="left")
        return np.asarray(1.0 - below / max(len(self.apart), 1))

    def plain(self) -> dict[str, Any]:
        """Return the values that gallery.json keeps."""
        return {"p_right": None if self.p_right is None else self.p_right.plain(), "apart": self.apart.tolist()}

    @classmethod
    def parse(cls, values: Mapping[str, Any] | None, folder: Path) -> Trust | None:
        """Return the facts from values of `plain` that were read from the gallery in `folder`.

        Raises:
            FileError: the values are damaged.
        """
        if values is None:
            return None
        try:
            p_right = None if values["p_right"] is None else PRight.of(values["p_right"])
            apart = np.sort(np.array(values["apart"], dtype=np.float64))
            if apart.ndim != 1 or not np.isfinite(apart).all():
                raise ValueError("distances between images are finite numbers")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FileError(f"the gallery {folder} is damaged ({error!r} in its trust); index it again.") from error
        return cls(p_right, apart)


@dataclass(frozen=True)
class Calibration:
    """Answers to labelled queries, from which certificates are made.

    Attributes:
        answers: the answers to be certified.
        p_right: map to P(right), fitted to other answers, which decides; None: another score decides.
        groups: group of each query; None: every query is drawn by itself.
        unit: the unit that is drawn, see `certify_record`.
    """

    answers: Answers
    p_right: PRight | None = None
    groups: np.ndarray | None = None
    unit: Literal["auto", "query"] = "auto"

    @property
    def fallback(self) -> str:
        """Name the score that decides if P(right) cannot be fitted: the first usual one that tells answers apart."""
        free = self.answers.free
        told = (name for name in ("disagreement", "gap") if name in free and np.ptp(free[name]) > 0)
        return next(told, "cosine")

    def with_p_right(self, units: np.ndarray | None = None) -> Calibration:
        """Return the calibration with P(right) fitted to a random fifth of the answers, or of the `units` (Q,).

        The other answers are to be certified, ordered by that map; its probabilities are then recalibrated by all
        answers. If that fifth is all right or all wrong, the result is the other answers without P(right).
        """
        answers = self.answers
        numbers = np.arange(len(answers.right)) if units is None else np.unique(units, return_inverse=True)[1]
        fitted = (np.random.default_rng(0).random(numbers.max() + 1) < FITTED)[numbers]
        right = answers.right[fitted]
        others = replace(
            self, answers=answers.rows(~fitted), groups=None if self.groups is None else self.groups[~fitted]
        )
        if not 0 < right.sum() < len(right):
            return others
        p_right = fit_p_right({name: doubt[fitted] for name, doubt in answers.free.items()}, right)
        return replace(others, p_right=p_right.recalibrated(answers.free, answers.right))


def labels_of(class_names: Sequence[str]) -> np.ndarray:
    """Return the numbers (N,) of classes by name, -1 where there is no name."""
    if not class_names:
        return np.empty(0, dtype=np.int64)
    names = np.array(class_names, dtype=str)
    return np.where(names == "", -1, np.unique(names, return_inverse=True)[1])


def distances_apart(mean: np.ndarray) -> np.ndarray:
    """Return 1 - cosine to the nearest other row, sorted, for a sample of the unit rows (N, M)."""
    if len(mean) < 2 or not mean.shape[1]:
        return np.empty(0)
    rows = np.sort(np.random.default_rng(0).permutation(len(mean))[:SAMPLE])
    return np.sort(1.0 - search(mean[rows], mean, self_index=rows).cosines[:, 0])


def fitting_certificate(
    certificates: Sequence[Certificate], risk: float, confidence: float, gallery: str, weights: str
) -> Certificate:
    """Return, of the certificates for at most this risk and at least this confidence, the one that answers most.

    Args:
        certificates: the certificates of the gallery.
        risk: share of wrong answers allowed among those given.
        confidence: chance that the promise holds.
        gallery: digest of the gallery.
        weights: digest of the model.

    Raises:
        CertificateError: no certificate fits, or those that fit are for another gallery or model.
    """
    fitting = [each for each in certificates if each.risk <= risk and each.confidence >= confidence]
    if not fitting:
        kept = ", ".join(f"{each.risk:g} at confidence {each.confidence:g}" for each in certificates) or "none"
        raise CertificateError(
            f"this gallery has no certificate for a risk of {risk:g} at confidence {confidence:g} (there are: {kept}). "
            "Make one from labelled images that are not in it: `probmetric certify`, or "
            "gallery.certify(model, images, risk=...)."
        )
    valid = [each for each in fitting if (each.gallery, each.weights) == (gallery, weights)]
    if not valid:
        fitting[0].check(gallery=gallery, weights=weights)
    return max(valid, key=lambda each: each.coverage)


def tries_to_pay(tried: dict[str, dict[str, int]], calibration: str, score: str, tries: int | None) -> int:
    """Record that a score is tried on a calibration set; return the number n of tries that the certificate counts for.

    A certificate that is one of n planned tries uses the n-th part of the calibration set's error budget. A try that
    exceeds the whole budget is refused.

    Args:
        tried: calibration digest -> score -> number of tries it was planned with; changed here.
        calibration: digest of the calibration set.
        score: the score that decides.
        tries: how many tries are planned; None: as many as at the first use of the set, or 1.

    Raises:
        CertificateError: the budget of the set is used up; the message says what to do.
    """
    earlier = tried.setdefault(calibration, {})
    planned = tries or next(iter(earlier.values()), 1)
    if score not in earlier:
        if sum(1 / count for count in earlier.values()) + 1 / planned > 1 + 1e-9:
            raise CertificateError(
                f"this calibration set was tried by {', '.join(earlier)} before; the best of several tries promises "
                "too much. Label new queries. Before their first try, hand over all scores (--score cosine,gap chooses "
                "at no cost) or plan how many tries there will be (--tries 8: each then asks for more queries)."
            )
        earlier[score] = planned
    return max(earlier[score], tries or 1)


def write_tries(folder: Path, tried: Mapping[str, Mapping[str, int]]) -> None:
    """Write which scores were tried on which calibration sets; earlier entries of the file stay."""
    if tried:
        with alone(folder / TRIES):
            there = read_tries(folder)
            both = {calibration: there.get(calibration, {}) | dict(scores) for calibration, scores in tried.items()}
            write_json(folder / TRIES, signed({"tried": there | both}))


def read_tries(folder: Path) -> dict[str, dict[str, int]]:
    """Return the tries that `write_tries` wrote.

    Raises:
        FileError: the file is damaged.
    """
    path = folder / TRIES
    if not present(path):
        return {}
    values = unsigned(read_json(path, AGAIN), path, AGAIN)
    kept: dict[str, dict[str, dict[str, int]]] = of_kind(values, _TRIES, path, AGAIN)
    return kept.get("tried", {})


def together(first: Certificate, second: Certificate) -> bool:
    """Say whether two certificates may be kept together: they need the same calibration set and map to P(right)."""
    one_map = not (first.p_right and second.p_right) or first.p_right == second.p_right
    return one_map and first.calibration == second.calibration


def write_certificates(folder: Path, certificates: Sequence[Certificate]) -> None:
    """Write each certificate to the file named by its risk and confidence; remove those that may not stay beside it."""
    for earlier in folder.glob("certificate-*.json"):
        with contextlib.suppress(FileError, CertificateError):  # a damaged certificate is refused when it is read
            if not all(together(Certificate.load(earlier), each) for each in certificates):
                earlier.unlink()
    for certificate in certificates:
        path = folder / f"certificate-{float(certificate.risk)!r}-{float(certificate.confidence)!r}.json"
        certificate.save(path)


def read_certificates(folder: Path) -> list[Certificate]:
    """Return the certificates in a gallery's folder; those of an earlier state of the gallery are refused at use.

    Raises:
        FileError: a file is damaged.
        CertificateError: a file is no certificate.
    """
    return [Certificate.load(path) for path in sorted(folder.glob("certificate-*.json"))]
