"""Deep ensembles for metric learning: K encoders trained from different seeds.

Paper 003, appendix G.4. The authors average the members' normalised embeddings (`combine="average"`). The spaces of
members trained independently differ by an arbitrary rotation, so this average is meaningless and retrieval collapses.
Two combinations respect the geometry:

    concatenate  mean = (u_1, ..., u_K)/√K. Its cosine similarity is exactly the members' average similarity.
    aligned      mean of the members rotated onto the first, by orthogonal Procrustes (rotation R_k = UVᵀ of
                 Σ u_k u_1ᵀ = USVᵀ over the training set).

Both take their uncertainty from the spread of the aligned members, which no rotation of a member changes.

With `over="seeds"`, members are runs of one method whose seeds are `apart` from each other; with `apart` = d, the
ensembles of seeds 0 to d-1 share no member. With `over="folds"`, members are the models of a protocol's numbered
datasets (paper 004, tables 6 and 7: four models, each trained without another quarter of the training classes).

Symbols: u_k = unit embedding of member k, R_k = `rotations`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probmetric.registry import Count, Range, When
from probmetric.uncertainty import register
from probmetric.uncertainty._base import DirectionalBatch, Fitting, Posterior, Predictor, evaluating, polar
from probmetric.uncertainty._summary import Summarised

if TYPE_CHECKING:
    from probmetric.models import Encoder


class EncoderEnsemble(nn.Module):
    """K encoders with embeddings of the same dimension M, used as one."""

    def __init__(self, members: Sequence[Encoder]) -> None:
        super().__init__()
        if len(members) < 2:
            raise ValueError(f"{len(members)} member given; an ensemble needs at least 2 encoders.")
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """Return unit embeddings (K, B, M) of `images` (B, ...)."""
        return torch.stack([polar(member(images))[0] for member in self.members])


@register
class Ensemble(Summarised):
    """Disagreement of independently trained encoders."""

    fits, fits_each_image = True, True

    def __init__(
        self,
        *,
        members: Annotated[int, Range(low=2, high=1000)] = 5,
        apart: Annotated[Count, When(over="seeds")] = 1,
        over: Literal["seeds", "folds"] = "seeds",
        combine: Literal["concatenate", "aligned", "average"] = "concatenate",
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.members, self.apart, self.over, self.combine = members, apart, over, combine
        self.needs = () if combine == "average" else ("rotations",)

    def fitted(self, fitting: Fitting) -> Posterior:
        """Return rotations (K, M, M) of the members onto the first on the training set."""
        ensemble = _as_ensemble(fitting.encoder)
        with evaluating(ensemble):
            units = (ensemble(images).double().cpu() for images, _ in fitting.batches)
            cross = functools.reduce(torch.add, (each.transpose(1, 2) @ each[0] for each in units))
        left, _, right = torch.linalg.svd(cross)
        return {"rotations": (left @ right).float().contiguous()}

    def represent(self, images: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Return directional distributions of `images` (B, ...); members are the samples, so `seed` is not used."""
        units = _as_ensemble(predictor.encoder)(images)
        if self.combine == "average":
            return self._averaged(units)
        distributions = self._averaged(units @ predictor.posterior["rotations"].to(units))
        if self.combine == "concatenate":
            distributions.mean = F.normalize(units.transpose(0, 1).flatten(1), dim=1)
        return distributions

    def _averaged(self, units: Tensor) -> DirectionalBatch:
        """Return the mean and spread of unit embeddings (K, B, M)."""
        return self.summarise(units[0], ((member - units[0], member) for member in units), None)


def _as_ensemble(encoder: Encoder | EncoderEnsemble) -> EncoderEnsemble:
    if not isinstance(encoder, EncoderEnsemble):
        raise ValueError(
            f"ensemble got one {type(encoder).__name__}; pass EncoderEnsemble([...]) "
            "of encoders trained from different seeds."
        )
    return encoder
