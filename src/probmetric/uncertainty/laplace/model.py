"""Post-hoc Laplace approximation of the last layer (LAM), for any trained encoder with a linear head.

Paper 003, equations 3 and 6-10: q(θ) = N(θ*, (relu(H) + δI)⁻¹), H the diagonal Gauss-Newton curvature of the
contrastive loss at the trained weights θ*, summed over mined pairs (`pairs="mined"`, the released code's scale) or
averaged over batches with the weights of equations 23-30 (`pairs="dataset"`). Symbols: δ = `prior_precision`,
w_n = `negative_weight`, m = `margin`.

Differences to the authors' code: no cap on pairs, batches without a mined triplet are skipped instead of
yielding 0/0, the evidence is maximised instead of followed for one step, and the default score is the 1/κ̂ of the
text instead of the sum of standard deviations (`score="std_sum"`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import nn

from probmetric.uncertainty import register
from probmetric.uncertainty._base import (
    Batches,
    DirectionalBatch,
    Posterior,
    Uncertainty,
    class_probabilities,
    device_of,
    evaluating,
)
from probmetric.uncertainty.laplace._ggn import diag_ggn
from probmetric.uncertainty.laplace._pairs import dataset_pairs, mined_pairs, weigh_negatives
from probmetric.uncertainty.laplace._prior import best_precision, evidence_precision, sparsification_area
from probmetric.uncertainty.laplace._sampling import DiagonalSampler, Sampler, summarise

Tensor = torch.Tensor

_CANDIDATES = tuple(10.0**power for power in range(-3, 9))

if TYPE_CHECKING:
    from probmetric.losses._base import Loss
    from probmetric.models._base import Encoder


@register
class Laplace(Uncertainty):
    """Gaussian posterior over the last layer, sampled into directional distributions."""

    fits = True

    def __init__(
        self,
        *,
        geometry: Literal["euclidean", "arccos"] = "euclidean",
        approximation: Literal["fixed", "positive", "full"] = "fixed",
        fidelity: Literal["corrected", "as_published"] = "corrected",
        pairs: Literal["mined", "dataset"] = "mined",
        triplets: Literal["all", "hard", "semihard", "easy"] = "all",
        margin: float = 0.5,
        negative_weight: float = 0.5,
        scale: float = 1.0,
        prior: Literal["fixed", "marginal_likelihood", "validation"] = "fixed",
        prior_precision: float = 1.0,
        samples: int = 100,
        score: Literal["std_sum", "inverse_concentration"] = "inverse_concentration",
        keep_samples: bool = False,
    ) -> None:
        if samples < 2:
            raise ValueError(f"samples is {samples}; use at least 2.")
        if prior_precision <= 0:
            raise ValueError(f"prior_precision is {prior_precision}; use a positive number.")
        if not 0 <= negative_weight <= 1:
            raise ValueError(f"negative_weight is {negative_weight}; allowed: 0 to 1 (0.5 changes nothing).")
        self.geometry, self.approximation, self.fidelity = geometry, approximation, fidelity
        self.pairs, self.triplets, self.margin = pairs, triplets, margin
        self.negative_weight, self.scale = negative_weight, scale
        self.prior, self.prior_precision = prior, prior_precision
        self.samples, self.score, self.keep_samples = samples, score, keep_samples

    def fit(
        self,
        encoder: Encoder,
        batches: Batches,
        *,
        loss: Loss | None = None,
        generator: torch.Generator,
        device: torch.device | str,
        validation: Batches | None = None,
    ) -> Posterior:
        """Curvature of the training batches and the prior precision, as a posterior's tensors.

        `validation` batches are needed for `prior="validation"` only.
        """
        head = linear_head(encoder)
        if self.prior == "validation" and validation is None:
            raise ValueError("prior is 'validation' but fit got no validation batches; pass validation=.")
        with evaluating(encoder):
            posterior = self._accumulate(encoder, head, batches, device)
            posterior["prior_precision"] = torch.tensor(self.prior_precision, dtype=torch.float64)
            if self.prior == "marginal_likelihood":
                curvature = [
                    posterior[key].clamp_min(0) for key in ("weight_curvature", "bias_curvature") if key in posterior
                ]
                chosen = evidence_precision(curvature, [part.detach().cpu() for part in head.parameters()])
                posterior["prior_precision"].fill_(chosen)
            elif self.prior == "validation" and validation is not None:
                seed = int(torch.randint(2**31, (), generator=generator))
                self._choose_on_validation(encoder, head, posterior, validation, device, seed)
        return posterior

    def _accumulate(self, encoder: Encoder, head: nn.Linear, batches: Batches, device: torch.device | str) -> Posterior:
        weight_total = torch.zeros_like(head.weight, dtype=torch.float64)
        bias_total = None if head.bias is None else torch.zeros_like(head.bias, dtype=torch.float64)
        used = terms = 0
        for images, labels in batches:
            features = encoder.features(images.to(device))
            weight_diag, bias_diag, count = self.curvature(head, features, labels.to(device))
            if count == 0:
                continue
            used, terms = used + 1, terms + count
            weight_total += weight_diag
            if bias_total is not None and bias_diag is not None:
                bias_total += bias_diag
        if used == 0:
            raise ValueError(
                f"no batch had a contributing pair (pairs={self.pairs!r}, triplets={self.triplets!r}, "
                f"margin={self.margin}); "
                "fit needs batches with at least two images of a class and two classes."
            )
        factor = self.scale / used if self.pairs == "dataset" else self.scale
        posterior = {"weight_curvature": (weight_total * factor).float().cpu(), "pairs": torch.tensor(terms)}
        if bias_total is not None:
            posterior["bias_curvature"] = (bias_total * factor).float().cpu()
        return posterior

    def curvature(self, head: nn.Linear, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None, int]:
        """Diagonal curvature (Z, D), (Z,) of one batch of features (B, D), labels (B,); number of terms in it."""
        embeddings = F.linear(features, head.weight, head.bias)
        if self.pairs == "dataset":
            pairs, target, count = dataset_pairs(embeddings, labels, margin=self.margin)
        else:
            pairs, target, count = mined_pairs(embeddings, labels, margin=self.margin, triplets=self.triplets)
        target = weigh_negatives(target, self.negative_weight)
        weight_diag, bias_diag = diag_ggn(
            features,
            head.weight,
            head.bias,
            pairs,
            target,
            geometry=self.geometry,
            approximation=self.approximation,
            fidelity=self.fidelity,
        )
        return weight_diag, bias_diag, count

    def _choose_on_validation(
        self,
        encoder: Encoder,
        head: nn.Linear,
        posterior: Posterior,
        validation: Batches,
        device: torch.device | str,
        seed: int,
    ) -> None:
        """Set the prior precision that gives the largest area under the validation sparsification curve."""
        parts = [(encoder.features(images.to(device)), labels.to(device)) for images, labels in validation]
        features, labels = (torch.cat(column) for column in zip(*parts, strict=True))

        def area(precision: float) -> float:
            posterior["prior_precision"].fill_(precision)
            batch = self._summarise(head, features, posterior, seed)
            return sparsification_area(batch.mean, labels, batch.uncertainty)

        posterior["prior_precision"].fill_(best_precision(_CANDIDATES, area))

    def sampler(self, head: nn.Linear, posterior: Posterior) -> Sampler:
        """Weight sampler of a stored posterior, on the head's device."""
        keys = ["weight_curvature", "prior_precision"] + (["bias_curvature"] if head.bias is not None else [])
        stored = self.require(posterior, keys)
        if stored["weight_curvature"].shape != head.weight.shape:
            raise ValueError(
                f"the posterior's curvature has shape {tuple(stored['weight_curvature'].shape)}, "
                f"the encoder's last layer "
                f"{tuple(head.weight.shape)}; fit a posterior for this encoder."
            )
        bias = None if head.bias is None else stored["bias_curvature"].to(head.bias)
        return DiagonalSampler(stored["weight_curvature"].to(head.weight), bias, float(stored["prior_precision"]))

    def _summarise(self, head: nn.Linear, features: Tensor, posterior: Posterior, seed: int) -> DirectionalBatch:
        return summarise(
            head,
            features,
            self.sampler(head, posterior),
            samples=self.samples,
            seed=seed,
            score=self.score,
            keep_samples=self.keep_samples,
        )

    def embed(
        self,
        encoder: Encoder,
        images: Tensor,
        *,
        posterior: Posterior | None = None,
        loss: Loss | None = None,
        seed: int,
    ) -> DirectionalBatch:
        """Directional distributions of `images` (B, ...). For many batches use `embed_batches`: one set of draws."""
        return self._embed_features(encoder, [images], posterior, loss, seed)

    def embed_batches(
        self,
        encoder: Encoder,
        batches: Iterable[Tensor],
        *,
        posterior: Posterior | None = None,
        loss: Loss | None = None,
        seed: int,
    ) -> DirectionalBatch:
        """The backbone runs once over the pass; every weight draw is generated once and applied to all features."""
        return self._embed_features(encoder, batches, posterior, loss, seed).to("cpu")

    def _embed_features(
        self,
        encoder: Encoder,
        batches: Iterable[Tensor],
        posterior: Posterior | None,
        loss: Loss | None,
        seed: int,
    ) -> DirectionalBatch:
        head = linear_head(encoder)
        stored = self.require(posterior, ["weight_curvature", "prior_precision"])
        with evaluating(encoder, loss):
            features = torch.cat([encoder.features(images.to(device_of(encoder, images))) for images in batches])
            result = self._summarise(head, features, stored, seed)
            result.probabilities = class_probabilities(loss, F.linear(features, head.weight, head.bias), seed)
        return result


def linear_head(encoder: Encoder) -> nn.Linear:
    """The encoder's final linear layer, or an error for an encoder without one."""
    head = getattr(encoder, "head", None)
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"{type(encoder).__name__}.head is {type(head).__name__}; "
            "the last-layer Laplace approximation needs a torch.nn.Linear."
        )
    return head
