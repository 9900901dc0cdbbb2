"""Embedding a split with several processes: each takes every W-th batch, the first one puts them together.

The record is the one a single process would make, to the bit where the encoder is deterministic: batches are the
same, and whatever describes a pass as a whole does so once, on all its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from probmetric.uncertainty import DirectionalBatch, Uncertainty, device_of, evaluating
from probmetric.uncertainty._whole_pass import WholePass

if TYPE_CHECKING:
    from probmetric.data.batches import SplitImages
    from probmetric.models import Encoder
    from probmetric.training.ranks import Ranks

T = TypeVar("T")


def embed_together(
    uncertainty: Uncertainty, encoder: Encoder, images: SplitImages, ranks: Ranks, **given: Any
) -> DirectionalBatch | None:
    """Directional distributions of all `images` in the first process, None in the others.

    `given` are the keyword arguments of `Uncertainty.embed_batches`.
    """
    if not ranks.several:
        return uncertainty.embed_batches(encoder, images.batches(), **given)
    own = images.batches(first=ranks.rank, step=ranks.count)
    if not isinstance(uncertainty, WholePass):
        records = [uncertainty.embed_batches(encoder, [batch], **given) for batch in own]
        found = in_turn(ranks.collected(records))
        return DirectionalBatch.concatenate(found) if ranks.first else None
    with evaluating(encoder, given["loss"]):
        rows = [uncertainty.represent(encoder, batch.to(device_of(encoder, batch))) for batch in own]
        collected = in_turn(ranks.collected([part.cpu() for part in rows]))
        if not ranks.first:
            return None
        whole = torch.cat(collected).to(device_of(encoder, rows[0]))
        return uncertainty.describe(whole, encoder=encoder, **given).to("cpu")


def in_turn(shares: list[list[T]]) -> list[T]:
    """One item of each share after the other: shares [[a, c], [b]] to [a, b, c]."""
    longest = max(map(len, shares), default=0)
    return [share[turn] for turn in range(longest) for share in shares if turn < len(share)]
