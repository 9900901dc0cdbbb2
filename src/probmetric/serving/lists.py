"""Use the results of another index in place of vectors: similarities to its gallery, or the k best of each query.

    similarities   (Q, N) cosines with every image of the gallery; -inf where a query must not find one, such as itself
    lists          (Q, k, 2) cosine and gallery row of the k nearest, best first, or the pair (scores, indices)

The match record needs no more. If a list shows a single class, the distance to the next class is unknown; the gap of
such an answer is then the gap to the last of its list, which is at most as large.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from probmetric.errors import ServingError
from probmetric.metrics.arrays import to_numpy
from probmetric.retrieval.match import Match
from probmetric.serving.gallery_trust import VOTES
from probmetric.trust.answers import Answers, answers_of
from probmetric.trust.certificates import CertificateError
from probmetric.trust.copies import FEW, find_themselves, same_picture
from probmetric.trust.deployed import warn_of_themselves

log = logging.getLogger(__name__)
BLOCK_ROWS = 1024
ABOVE_ONE = 1e-3  # rounding error of a cosine
DIGITS = 6  # difference between cosines of copies


def checked(hits: Any, rows: int, depth: int = 0) -> np.ndarray:
    """Check results from a gallery of N `rows`; return similarities (Q, N) or lists (Q, k, 2).

    Args:
        hits: similarities or lists, or a pair of scores and indices (Q, k).
        rows: N.
        depth: k, to which longer lists are cut; 0: similarities are expected.

    Raises:
        ServingError: the scores are no cosines or not sorted, lists are too short, or rows do not exist.
    """
    values = joined(*hits) if isinstance(hits, tuple) and len(hits) == 2 else to_numpy(hits)
    if depth:
        if values.ndim != 3 or values.shape[2:] != (2,) or values.shape[1] < depth:
            raise ServingError(
                f"{values.shape} is found; this gallery is asked by lists of {depth}: (scores, indices)."
            )
        values = values[:, :depth]
        _check_lists(values, rows)
    elif values.ndim != 2 or values.shape[1] != rows or values.dtype.kind not in "fiu":
        raise ServingError(f"similarities are {values.dtype} of shape {values.shape}; expected numbers (Q, {rows}).")
    scores = values[..., 0] if depth else values
    bad = np.isnan(scores) | (scores > 1 + ABOVE_ONE) | (scores < -1 - ABOVE_ONE) & (depth > 0 or scores != -np.inf)
    if bad.any():
        row, place = (int(each[0]) for each in np.nonzero(bad))
        raise ServingError(
            f"query {row} has the similarity {scores[row, place]:g}; expected cosines, from -1 to 1. Of unit vectors "
            "at a distance d the cosine is 1 - d² / 2; for scores that are no cosines use trust.certify."
        )
    return values


def joined(scores: Any, indices: Any) -> np.ndarray:
    """Return lists (Q, k, 2) of scores and indices (Q, k).

    Raises:
        ServingError: their shapes differ.
    """
    first, second = to_numpy(scores), to_numpy(indices)
    if first.ndim != 2 or first.shape != second.shape or first.shape[1] < 2:
        raise ServingError(
            f"scores are {first.shape}, indices {second.shape}; expected both (queries, k), k at least 2: the gap to "
            "the second class needs a second row."
        )
    return np.stack([first, second], axis=-1).astype(np.float64)


def _check_lists(values: np.ndarray, rows: int) -> None:
    scores, indices = values[..., 0], values[..., 1]
    out = (indices < 0) | (indices >= rows) | (indices != np.floor(indices))
    if out.any():
        row = int(out.any(axis=1).argmax())
        hint = "the index found fewer than k: ask it for fewer, or search more of its cells (nprobe)"
        short = hint if -1 in indices[row] else f"a gallery row is a whole number below {rows}"
        raise ServingError(f"the list of query {row} has the index {indices[row][out[row]][0]:g}; {short}.")
    falling = (np.diff(scores, axis=1) <= 0).all(axis=1) | np.isnan(scores).any(axis=1)
    if not falling.all():
        row = int(falling.argmin())
        raise ServingError(
            f"the scores of query {row} rise; expected similarities, the best first. Are they distances? Of unit "
            "vectors at a distance d the cosine is 1 - d² / 2."
        )
    twice = (np.diff(np.sort(indices, axis=1), axis=1) == 0).any(axis=1)
    if twice.any():
        raise ServingError(f"the list of query {int(twice.argmax())} names a gallery row twice.")


def among_others(hits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the results of each of N images among the others, and which of them (N,) can be queries.

    An image does not find itself or its copies. Of copies only the first is a query. An image that is then alone in its
    class is no query.

    Args:
        hits: results of each image among all images: similarities (N, N) or lists (N, k, 2).
        labels: classes (N,).
    """
    whole, itself = hits.ndim == 2, np.arange(len(hits))[:, None]
    scores = hits if whole else hits[..., 0]
    indices = np.arange(len(labels))[None] if whole else hits[..., 1].astype(np.int64)
    struck = same_picture(scores, FEW) & (scores <= 1 + ABOVE_ONE) | (indices == itself)
    numbers = np.unique(labels, return_inverse=True)[1]
    others = np.bincount(numbers)[numbers] - 1
    others = others - (struck & (numbers[indices] == numbers[itself]) & (indices != itself)).sum(axis=1)
    asks = ~(struck & (indices < itself)).any(axis=1) & (others > 0)
    if whole:
        asks &= np.count_nonzero(~struck, axis=1) >= min(VOTES, len(labels) - 1)
        return np.where(struck, -np.inf, hits), asks
    struck[:, -1] |= ~(indices == itself).any(axis=1)  # so that all lists have the same length
    order = np.argsort(struck, axis=1, kind="stable")
    return np.take_along_axis(hits, order[..., None], axis=1)[
        :, : hits.shape[1] - int(struck[asks].sum(axis=1).max(initial=1))
    ], asks


def match_of(hits: np.ndarray, labels: np.ndarray, k: int) -> Match:
    """Return the match of queries from their results: the k nearest (at least `VOTES`), or as many as all queries have.

    Args:
        hits: similarities (Q, N) or lists (Q, k', 2), as `checked` gives them.
        labels: classes of the gallery (N,).
        k: number of nearest images.

    Raises:
        ServingError: a query finds fewer images than vote in the scores of an answer.
    """
    if hits.ndim == 3:
        scores, indices = hits[..., 0], hits[..., 1].astype(np.int64)
        others = labels[indices] != labels[indices[:, :1]]
        place = np.where(others.any(axis=1), others.argmax(axis=1), -1)
        second = scores[np.arange(len(scores)), place]
    else:
        counts = np.count_nonzero(hits > -np.inf, axis=1)
        k, voting = min(k, int(counts.min(initial=k))), min(VOTES, hits.shape[1] - 1)
        if k < max(voting, 1):
            row = int(counts.argmin())
            raise ServingError(
                f"query {row} may find {counts[row]} of {hits.shape[1]} images (the others are -inf), but its scores "
                f"need the {max(voting, 1)} nearest. Ask it in a gallery of its own, or leave it out."
            )
        parts = [_nearest(hits[start : start + BLOCK_ROWS], labels, k) for start in range(0, len(hits), BLOCK_ROWS)]
        scores, indices, second = (np.concatenate(each) for each in zip(*parts, strict=True))
    query, gap = {"uncertainty": np.zeros(len(hits), dtype=np.float32)}, scores[:, 0] - np.maximum(second, -1.0)
    one_class = len(np.unique(labels)) < 2
    return Match(scores[:, :k], indices[:, :k], labels[indices[:, :k]], None if one_class else gap, query)


def _nearest(hits: np.ndarray, labels: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores and rows (B, k) of the nearest, and the score (B,) of the nearest of another class.

    Of images exactly as near, those with lower rows come first, and are in the list.
    """
    values = hits.astype(np.float64)
    query, row = np.nonzero(values >= np.partition(values, -k, axis=1)[:, [-k]])
    nearest_first = row[np.lexsort((row, -values[query, row], query))]
    rows = nearest_first[np.searchsorted(query, np.arange(len(values)))[:, None] + np.arange(k)]
    scores = np.take_along_axis(values, rows, axis=1)
    values[labels[rows[:, :1]] == labels] = -np.inf
    return scores, rows, values.max(axis=1)


def calibration(hits: np.ndarray, truth: np.ndarray, labels: np.ndarray) -> tuple[Answers, np.ndarray]:
    """Return the answers to calibration queries, and the numbers (K,) of these queries, without copies of others.

    Args:
        hits: similarities (Q, N) or lists (Q, k, 2), as `checked` gives them.
        truth: classes of the queries (Q,), numbered as the gallery's.
        labels: classes of the gallery (N,), -1 where none is known.

    Raises:
        CertificateError: queries find themselves, gallery images lack a class, or similarities look like distances.
    """
    if not len(hits) or labels.min(initial=0) < 0 or len(np.unique(labels)) < 2:
        raise CertificateError(
            "certificates need calibration queries, and a gallery whose images all have a class, of two or more."
        )
    match = match_of(hits, labels, VOTES)
    if hits.ndim == 3 and match.gap is not None:
        alone = int((labels[hits[..., 1].astype(np.int64)] == match.classes[:, :1]).all(axis=1).sum())
        if alone:
            log.warning(
                "%d of %d lists of %d show one class only, so their gap is counted to the last image of the list; use "
                "longer lists",
                *(alone, *hits.shape[:2]),
            )
    themselves = int(find_themselves(match.similarity, FEW).sum())
    if themselves:
        raise CertificateError(
            f"{themselves} of {len(hits)} calibration queries find themselves in the gallery. Set their own "
            "similarity to -inf, take them out of their lists; or leave `query_labels` out of the file, where each "
            "image of the gallery is asked among the others."
        )
    warn_of_themselves(match.similarity)
    rounded = np.round(np.stack([match.similarity, match.indices], axis=-1), DIGITS).reshape(len(hits), -1)
    once = np.sort(np.unique(rounded, axis=0, return_index=True)[1])
    answers = answers_of(match, truth, labels).rows(np.isin(np.arange(len(hits)), once))
    if (
        hits.ndim == 2
        and answers.right.sum() < (labels[np.where(hits > -np.inf, hits, 2).argmin(axis=1)] == truth)[once].sum()
    ):
        raise CertificateError("the least similar is right more often than the most similar: are these distances?")
    return answers, once
