"""Sums by which damage of rows too large for a digest is noticed: a tenth of its processor time.

Per block of 8 MiB the SHA-256 of

    s_j = sum_p w_pj  modulo 2^64,   j = 1 ... 512

over its pages p of 512 words w of 8 bytes, and of what is left after the last page. A changed word, a page of zeros and
another block's content are noticed; two changes in the same place of two pages can cancel. It is meant for disks and
memory: who changes rows on purpose can write new sums.
"""

from __future__ import annotations

import hashlib

import numpy as np

BLOCK_BYTES = 8 * 2**20
_PAGE_BYTES = 4096
_DIGITS = 16


def row_sums(values: np.ndarray) -> str:
    """Sums of an array's blocks, separated by commas."""
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return ",".join(_sum(flat[start : start + BLOCK_BYTES]) for start in range(0, len(flat), BLOCK_BYTES))


def changed_row(values: np.ndarray, sums: str) -> int | None:
    """First row of the first block of `values` (n, ...) that does not fit its `sums`; None where all do."""
    found, expected = row_sums(values).split(","), sums.split(",")
    wrong = [block for block, pair in enumerate(zip(found, expected, strict=False)) if len(set(pair)) > 1]
    if not wrong:
        return None if len(found) == len(expected) else 0
    return wrong[0] * BLOCK_BYTES * len(values) // values.nbytes


def _sum(block: np.ndarray) -> str:
    whole = len(block) // _PAGE_BYTES * _PAGE_BYTES
    sums = block[:whole].view(np.uint64).reshape(-1, _PAGE_BYTES // 8).sum(axis=0)
    digest = hashlib.sha256(sums.data)
    digest.update(block[whole:].data)
    return digest.hexdigest()[:_DIGITS]
