"""Post-hoc Laplace approximation of the last layer (LAM), for any trained encoder with a linear head.

Paper 003, equations 3 and 6-10: q(θ) = N(θ*, (relu(H) + δI)⁻¹), H the diagonal Gauss-Newton curvature of the
contrastive loss at the trained weights θ*, summed over mined pairs (`pairs="mined"`, the released code's scale) or
averaged over batches with the weights of equations 23-30 (`pairs="dataset"`). Symbols: δ = `prior_precision`,
w_n = `negative_weight`, m = `margin`. `structure="kronecker"` takes the diagonal in a Kronecker eigenbasis instead of
the coordinate basis; it holds the training set's features while fitting.

δ is 1 by default, as in the authors' code, here and in the online form. For `arccos` `fixed`, curvature summed over a
training set is far above 1. Maximising the evidence (`prior="marginal_likelihood"`) gives a δ of tens to hundreds,
above the curvature of most weights. The draws are then isotropic noise, and the uncertainty is |h| / |z| for any
curvature. The same happens with δ = 1 for `euclidean` `fixed`, where half of the curvature is negative and cut off.
The posterior records this: `prior_share` is the share of weights whose prior is above their curvature, and
`mean_resultant_length` tells how far the draws agree. `noise="isotropic"` is the control: weight noise of the same mean
variance without any curvature.

`prior="marginal_likelihood"` maximises the Laplace evidence −½δ|θ|² + ½P log δ − ½Σ log(h + δ) over δ. Its stationarity
condition is γ(δ) = Σ h/(h + δ) = δ|θ|². Its left side decreases and its right side increases, so it has one root, found
by bisection in log δ. The released code takes one Adam step instead.

Differences to the authors' code: no cap on pairs; batches without a mined triplet are skipped instead of yielding 0/0;
the default score is the text's 1/κ̂, not the sum of standard deviations (`score="std_sum"`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from probmetric.metrics.selective import accuracy_by_coverage
from probmetric.registry import NotNegative, Positive, Range, When
from probmetric.uncertainty import register
from probmetric.uncertainty._base import (
    DirectionalBatch,
    Fitting,
    Posterior,
    Predictor,
    evaluating,
    linear_head,
    seed_from,
)
from probmetric.uncertainty._summary import Sampled
from probmetric.uncertainty.laplace.curvature import Batch, CurvatureRule, augment, augmented_weight
from probmetric.uncertainty.laplace.posterior import flattened, record, summarise_moves

LOWEST, HIGHEST = 1e-8, 1e12
_CANDIDATES = tuple(10.0**power for power in range(-3, 9))
RECORDED = 512


class LastLayerPosterior(Sampled):
    """Gaussian posterior over the last layer, sampled into directional distributions.

    Subclasses define `layer_curvature`, and have the option `prior`.
    """

    fits = True
    needs_head = True
    needs = ("weight_curvature", "prior_precision")
    prior: Literal["fixed", "marginal_likelihood", "validation"]

    def __init__(
        self,
        *,
        geometry: Literal["euclidean", "arccos"] = "arccos",
        approximation: Literal["fixed", "positive", "full"] = "fixed",
        fidelity: Literal["corrected", "as_published"] = "corrected",
        pairs: Literal["mined", "dataset"] = "mined",
        triplets: Annotated[Literal["all", "hard", "semihard", "easy"], When(pairs="mined")] = "all",
        margin: Positive = 0.7,
        negative_weight: Annotated[float, Range(low=0, high=1)] = 0.5,
        prior_precision: Annotated[Positive, When(prior="fixed")] = 1.0,
        noise: Literal["posterior", "isotropic"] = "posterior",
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.rule = CurvatureRule(geometry, approximation, fidelity, pairs, triplets, margin, negative_weight)
        self.prior_precision, self.noise = prior_precision, noise

    def layer_curvature(self, fitting: Fitting, batches: Iterator[Batch]) -> Posterior:
        """Return the curvature of the last layer, and its basis if it has one, as a posterior's tensors."""
        raise NotImplementedError

    def fitted(self, fitting: Fitting) -> Posterior:
        """Return the curvature, the prior precision and the record, as a posterior's tensors.

        Only `prior="validation"` needs validation batches.
        """
        if self.prior == "validation" and fitting.validation is None:
            raise ValueError("prior is 'validation' but fit got no validation batches; pass validation=.")
        head, kept = linear_head(fitting.encoder), list[Tensor]()
        with evaluating(fitting.encoder):
            batches = self._layer_batches(fitting, kept)
            posterior = self.layer_curvature(fitting, batches)
            for _ in batches:  # left where the curvature was learnt in training
                if sum(map(len, kept)) >= RECORDED:
                    break
            return self._finished(fitting, head, posterior, kept)

    def _layer_batches(self, fitting: Fitting, kept: list[Tensor]) -> Iterator[Batch]:
        """Yield inputs and outputs of the last layer, and labels; put the first features into `kept` for the record."""
        head = linear_head(fitting.encoder)
        for images, labels in fitting.batches:
            features = fitting.encoder.features(images)
            if sum(map(len, kept)) < RECORDED:
                kept.append(features)
            yield augment(features, head), head(features), labels.to(fitting.device)

    def _finished(self, fitting: Fitting, head: nn.Linear, posterior: Posterior, kept: list[Tensor]) -> Posterior:
        """Return the posterior, or its isotropic control, with its prior precision and its record."""
        seed = seed_from(fitting.generator)
        precision = self._precision(fitting, head, posterior, seed)
        posterior["prior_precision"] = torch.tensor(precision, dtype=torch.float64)
        if self.noise == "isotropic":
            posterior = flattened(posterior)
        features = torch.cat(kept)[:RECORDED] if kept else None
        return posterior | record(head, posterior, features, samples=self.samples, seed=seed)

    def _precision(self, fitting: Fitting, head: nn.Linear, posterior: Posterior, seed: int) -> float:
        """Return the prior precision: `prior_precision`, or that of the highest evidence, or the best in validation."""
        if self.prior == "marginal_likelihood":
            weight = augmented_weight(head).detach().cpu()
            return evidence_precision(posterior["weight_curvature"].clamp_min(0), weight)
        if self.prior == "validation":
            return self._best_in_validation(fitting, head, posterior, seed)
        return self.prior_precision

    def _best_in_validation(self, fitting: Fitting, head: nn.Linear, posterior: Posterior, seed: int) -> float:
        """Return the prior precision that gives the largest area under the validation sparsification curve."""
        encoder, device = fitting.encoder, fitting.device
        parts = [(encoder.features(images), labels.to(device)) for images, labels in fitting.validation or ()]
        features, labels = (torch.cat(column) for column in zip(*parts, strict=True))

        def area(precision: float) -> float:
            trial = posterior | {"prior_precision": torch.tensor(precision, dtype=torch.float64)}
            batch = summarise_moves(head, features, trial, self, seed, None)
            return sparsification_area(batch.mean, labels, batch.uncertainty)

        return max(_CANDIDATES, key=area)

    def represent(self, images: Tensor, predictor: Predictor) -> Tensor:
        """Return inputs (B, D) of the last layer."""
        return predictor.encoder.features(images)

    def describe(self, rows: Tensor, predictor: Predictor) -> DirectionalBatch:
        """Describe features (N, D); every weight draw is generated once and applied to all rows."""
        head = linear_head(predictor.encoder)
        return summarise_moves(head, rows, predictor.posterior, self, predictor.seed, predictor.probabilities)


@register
class Laplace(LastLayerPosterior):
    """Posterior over the last layer of a trained encoder."""

    def __init__(
        self,
        *,
        structure: Literal["diagonal", "kronecker"] = "diagonal",
        scale: NotNegative = 1.0,
        prior: Literal["fixed", "marginal_likelihood", "validation"] = "fixed",
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.structure, self.scale, self.prior = structure, scale, prior

    def layer_curvature(self, fitting: Fitting, batches: Iterator[Batch]) -> Posterior:
        """Return the curvature of the training batches."""
        curvature = self.rule.kronecker if self.structure == "kronecker" else self.rule.diagonal
        return curvature(batches, self.scale)


def evidence_precision(curvature: Tensor, weight: Tensor) -> float:
    """Return the δ that maximises the evidence, for diagonal curvature h ≥ 0 and mean parameters θ (same shapes)."""
    squared_norm, curvature = float(weight.double().square().sum()), curvature.double()

    def surplus(log_precision: float) -> float:
        precision = math.exp(log_precision)
        return float((curvature / (curvature + precision)).sum()) - precision * squared_norm

    low, high = math.log(LOWEST), math.log(HIGHEST)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if surplus(middle) > 0 else (low, middle)
    return math.exp(0.5 * (low + high))


def sparsification_area(mean: Tensor, labels: Tensor, uncertainty: Tensor) -> float:
    """Return the mean accuracy of the nearest neighbour over all fractions kept, surest images first.

    mean (N, M) unit rows, labels (N,), uncertainty (N,).
    """
    similarity = mean @ mean.T
    similarity.fill_diagonal_(-math.inf)
    correct = (labels[similarity.argmax(1)] == labels).double()
    return float(accuracy_by_coverage(uncertainty.double().cpu().numpy(), correct.cpu().numpy()).mean())
