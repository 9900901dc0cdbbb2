"""Post-hoc Laplace approximation of the last layer (LAM), for any trained encoder with a linear head.

Paper 003, equations 3 and 6-10: q(θ) = N(θ*, (relu(H) + δI)⁻¹), H the diagonal Gauss-Newton curvature of the
contrastive loss at the trained weights θ*, summed over mined pairs (`pairs="mined"`, the released code's scale) or
averaged over batches with the weights of equations 23-30 (`pairs="dataset"`). Symbols: δ = `prior_precision`,
w_n = `negative_weight`, m = `margin`. `structure="kronecker"` takes the diagonal in a Kronecker eigenbasis instead of
the coordinate basis; it holds the training set's features while fitting.

δ is the authors' 1 by default, here and in the online form, so that both are compared by one rule. Curvature summed
over a training set is far above that for `arccos` `fixed`. Evidence (`prior="marginal_likelihood"`) finds a δ of tens
to hundreds, above the curvature in most weights: the draws are then isotropic noise, and the uncertainty is |h| / |z|
whatever the curvature is. So it is with δ = 1 for `euclidean` `fixed`, half of whose curvature is negative and cut off.
What was fitted says it: `prior_share` is the share of weights whose prior is above their curvature,
`mean_resultant_length` that of the draws. `noise="isotropic"` is the control: weight noise of the same mean variance
without any curvature.

Differences to the authors' code: no cap on pairs, batches without a mined triplet are skipped instead of
yielding 0/0, the evidence is maximised instead of followed for one step, and the default score is the 1/κ̂ of the
text instead of the sum of standard deviations (`score="std_sum"`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from torch import nn

from probmetric.registry import Draws, Positive, Range, When
from probmetric.uncertainty import register
from probmetric.uncertainty._base import (
    DirectionalBatch,
    Fitting,
    Posterior,
    Predictor,
    Uncertainty,
    evaluating,
    seed_from,
)
from probmetric.uncertainty._summary import Classifier
from probmetric.uncertainty.laplace._curvature import CurvatureRule
from probmetric.uncertainty.laplace._posterior import linear_head, stored_sampler
from probmetric.uncertainty.laplace._prior import best_precision, evidence_precision, sparsification_area
from probmetric.uncertainty.laplace._record import flattened, record
from probmetric.uncertainty.laplace._sampling import summarise

Tensor = torch.Tensor

_CANDIDATES = tuple(10.0**power for power in range(-3, 9))
RECORDED = 512


@register
class Laplace(Uncertainty):
    """Gaussian posterior over the last layer, sampled into directional distributions."""

    fits = True
    needs_head = True
    needs = ("weight_curvature", "prior_precision")

    def __init__(
        self,
        *,
        geometry: Literal["euclidean", "arccos"] = "arccos",
        approximation: Literal["fixed", "positive", "full"] = "fixed",
        fidelity: Literal["corrected", "as_published"] = "corrected",
        structure: Literal["diagonal", "kronecker"] = "diagonal",
        pairs: Literal["mined", "dataset"] = "mined",
        triplets: Literal["all", "hard", "semihard", "easy"] = "all",
        margin: Positive = 0.7,
        negative_weight: Annotated[float, Range(low=0, high=1)] = 0.5,
        scale: Annotated[float, Range(low=-1)] = 1.0,
        prior: Literal["fixed", "marginal_likelihood", "validation"] = "fixed",
        prior_precision: Annotated[Positive, When(prior="fixed")] = 1.0,
        noise: Literal["posterior", "isotropic"] = "posterior",
        samples: Draws = 100,
        score: Literal["std_sum", "inverse_concentration"] = "inverse_concentration",
        keep_samples: bool = False,
    ) -> None:
        self.rule = CurvatureRule(geometry, approximation, fidelity, pairs, triplets, margin, negative_weight)
        self.structure, self.scale = structure, scale
        self.prior, self.prior_precision, self.noise = prior, prior_precision, noise
        self.samples, self.score, self.keep_samples = samples, score, keep_samples

    def fitted(self, given: Fitting) -> Posterior:
        """Curvature of the training batches, the prior precision and the record, as a posterior's tensors.

        `validation` batches are needed for `prior="validation"` only.
        """
        self._require_validation(given)
        head, kept = linear_head(given.encoder), list[Tensor]()
        with evaluating(given.encoder):
            seen = self._seen(given, kept)
            if self.structure == "kronecker":
                posterior = self.rule.kronecker(head, seen, self.scale)
            else:
                posterior = self.rule.diagonal(head.weight, head.bias, seen, self.scale)
            return self._finished(given, head, posterior, kept)

    def _require_validation(self, given: Fitting) -> None:
        if self.prior == "validation" and given.validation is None:
            raise ValueError("prior is 'validation' but fit got no validation batches; pass validation=.")

    def _seen(self, given: Fitting, kept: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Features (B, D) and labels (B,) of the batches; the first features go to `kept`, for the record."""
        for images, labels in given.batches:
            features = given.encoder.features(images.to(given.device))
            if sum(map(len, kept)) < RECORDED:
                kept.append(features)
            yield features, labels.to(given.device)

    def _finished(self, given: Fitting, head: nn.Linear, posterior: Posterior, kept: list[Tensor]) -> Posterior:
        """The posterior, or its isotropic control, with its prior precision and its record."""
        seed = seed_from(given.generator)
        self._set_prior(given, head, posterior, seed)
        if self.noise == "isotropic":
            posterior = flattened(posterior)
        features = torch.cat(kept)[:RECORDED] if kept else None
        return posterior | record(head, posterior, features, samples=self.samples, seed=seed)

    def _set_prior(self, given: Fitting, head: nn.Linear, posterior: Posterior, seed: int) -> None:
        """Add the prior precision: given, of the highest evidence, or the best on validation images."""
        posterior["prior_precision"] = torch.tensor(self.prior_precision, dtype=torch.float64)
        if self.prior == "marginal_likelihood":
            curvature = [
                posterior[key].clamp_min(0) for key in ("weight_curvature", "bias_curvature") if key in posterior
            ]
            chosen = evidence_precision(curvature, [part.detach().cpu() for part in head.parameters()])
            posterior["prior_precision"].fill_(chosen)
        elif self.prior == "validation":
            self._choose_on_validation(given, head, posterior, seed)

    def _choose_on_validation(self, given: Fitting, head: nn.Linear, posterior: Posterior, seed: int) -> None:
        """Set the prior precision that gives the largest area under the validation sparsification curve."""
        encoder, device = given.encoder, given.device
        seen = given.validation or ()
        parts = [(encoder.features(images.to(device)), labels.to(device)) for images, labels in seen]
        features, labels = (torch.cat(column) for column in zip(*parts, strict=True))

        def area(precision: float) -> float:
            posterior["prior_precision"].fill_(precision)
            batch = self._summarise(head, features, posterior, seed)
            return sparsification_area(batch.mean, labels, batch.uncertainty)

        posterior["prior_precision"].fill_(best_precision(_CANDIDATES, area))

    def _summarise(
        self, head: nn.Linear, features: Tensor, posterior: Posterior, seed: int, classify: Classifier | None = None
    ) -> DirectionalBatch:
        return summarise(
            head,
            features,
            stored_sampler(head, posterior),
            samples=self.samples,
            seed=seed,
            score=self.score,
            keep_samples=self.keep_samples,
            classify=classify,
        )

    def represent(self, images: Tensor, given: Predictor) -> Tensor:
        """Inputs (B, D) of the last layer."""
        linear_head(given.encoder)
        return given.encoder.features(images)

    def describe(self, rows: Tensor, given: Predictor) -> DirectionalBatch:
        """Directional distributions of features (N, D): every weight draw is generated once and applied to all."""
        head = linear_head(given.encoder)
        return self._summarise(head, rows, given.posterior, given.seed, given.probabilities)
