"""Numbers an option of the package's components takes where its annotation does not say so.

A name means one thing in every component of a kind, so its range is written once, by kind and name. What a component
asks beyond that (`resize` at least `size`) it checks itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Range:
    """Numbers an option takes, written `Annotated[float, Range(above=0)]`; a bound that is None is none.

    Attributes:
        above: smaller than any allowed number.
        low: the smallest allowed number.
        high: the largest allowed number.
        below: larger than any allowed number.
    """

    above: float | None = None
    low: float | None = None
    high: float | None = None
    below: float | None = None

    def __contains__(self, number: float) -> bool:
        return (
            (self.above is None or number > self.above)
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        words = {"above": self.above, "at least": self.low, "at most": self.high, "below": self.below}
        return ", ".join(f"{word} {bound:.10g}" for word, bound in words.items() if bound is not None)


ANY = Range()
LARGEST = 10**6
"""Of what there can be many: draws, proxies, images, pixels, epochs."""

_MANY = Range(low=1, high=LARGEST)
_NONE_OR_MANY = Range(low=0, high=LARGEST)
_SPREAD = Range(low=2, high=LARGEST)  # a spread is estimated from two draws and more
_SHARE = Range(low=0, below=1)
_RATE = Range(above=0, high=1e4)
_WEIGHT = Range(low=0, high=1e9)
_POSITIVE = Range(above=0, high=1e9)
_ANY = Range(low=-1e9, high=1e9)
_RESULTANT = Range(above=0, below=1)  # the length of a mean of unit vectors

RANGES: Mapping[str, Mapping[str, Range]] = {
    "loss": {
        "base": _ANY,
        "beta": _POSITIVE,
        "cutoff": _WEIGHT,
        "delta_attraction": _WEIGHT,
        "delta_repulsion": _WEIGHT,
        "depth": _MANY,
        "embedding_scale": _WEIGHT,
        "epsilon": _ANY,
        "guide_margin": _ANY,
        "guide_scale": _POSITIVE,
        "margin": _ANY,
        "margin_from_epoch": _NONE_OR_MANY,
        "min_distance": _POSITIVE,
        "prior_strength": _WEIGHT,
        "proxies_per_class": _NONE_OR_MANY,
        "resultant": _RESULTANT,
        "scale": _POSITIVE,
        "tau": _WEIGHT,
        "upper_cutoff": _POSITIVE,
    },
    "uncertainty": {
        "apart": _MANY,
        "epochs": _NONE_OR_MANY,
        "initial_curvature": Range(low=-1, high=1e12),
        "kl_weight": _WEIGHT,
        "learning_rate": _RATE,
        "margin": _POSITIVE,
        "members": Range(low=2, high=1000),
        "memory": Range(above=0, high=1),
        "negative_weight": Range(low=0, high=1),
        "prior_precision": Range(above=0, high=1e12),
        "rate": _SHARE,
        "samples": _MANY,
        "scale": Range(low=-1, high=1e15),
        "temperature": _POSITIVE,
        "train_samples": _NONE_OR_MANY,
    },
    "backbone": {"drop_rate": _SHARE},
    "view": {
        "erase": _NONE_OR_MANY,
        "resize": _NONE_OR_MANY,
        "rotation": Range(low=0, high=180),
        "scale": _SHARE,
        "shift": _NONE_OR_MANY,
        "size": _MANY,
    },
    "dataset": {
        "classes": _MANY,
        "fold": _NONE_OR_MANY,
        "letters": _SPREAD,
        "min_images": _MANY,
        "per_class": _SPREAD,
        "shorter_side": _NONE_OR_MANY,
        "test_fraction": _SHARE,
        "test_letters": _SPREAD,
        "train_per_class": _SPREAD,
        "val_fraction": _SHARE,
        "worst": Range(above=0, high=1),
    },
}


def range_of(kind: str, name: str, written: Range) -> Range:
    """The range of option `name`: what its annotation says, else what the name means; rates are those of training."""
    if name.endswith("_lr"):
        return replace(written, high=_RATE.high)
    return written if written != ANY else RANGES.get(kind, {}).get(name, written)
