"""Online LAM: the last-layer posterior is learnt while training (paper 003, section 3, Monte-Carlo EM).

As an *objective* it shapes training (`laplace/_online.py` has the equations); as an *uncertainty* it takes the
posterior the objective learnt and samples it exactly as the post-hoc approximation does. Defaults that depend on the
number N of training images are written −1: `initial_curvature` is then N and `scale` N², the authors' values.
`normalize="triplets"` divides a batch's curvature by its number of triplets (authors); "none" sums, which is the
scale of the post-hoc approximation. `memory` is m: the text's memory factor α is 1 − m.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from torch import Tensor

from probmetric.registry import CountOrZero, Draws, Fraction, Positive, Range, When
from probmetric.uncertainty import register
from probmetric.uncertainty._base import Fitting, Posterior, evaluating
from probmetric.uncertainty.laplace._online import OnlineLaplaceObjective
from probmetric.uncertainty.laplace._posterior import linear_head
from probmetric.uncertainty.laplace.model import RECORDED, Laplace

if TYPE_CHECKING:
    from probmetric.losses import Loss
    from probmetric.models import Encoder


@register
class OnlineLaplace(Laplace):
    """Posterior learnt during training; sampled like the post-hoc one."""

    fits = True
    trains_encoder = True

    def __init__(
        self,
        *,
        geometry: Literal["euclidean", "arccos"] = "arccos",
        approximation: Literal["fixed", "positive", "full"] = "fixed",
        fidelity: Literal["corrected", "as_published"] = "corrected",
        pairs: Literal["mined", "dataset"] = "mined",
        triplets: Literal["all", "hard", "semihard", "easy"] = "all",
        margin: Positive = 0.7,
        negative_weight: Annotated[float, Range(low=0, high=1)] = 0.5,
        memory: Fraction = 0.999,
        initial_curvature: Annotated[float, Range(low=-1)] = -1.0,
        scale: Annotated[float, Range(low=-1)] = -1.0,
        normalize: Literal["triplets", "none"] = "triplets",
        prior: Literal["fixed", "validation"] = "fixed",
        prior_precision: Annotated[Positive, When(prior="fixed")] = 1.0,
        noise: Literal["posterior", "isotropic"] = "posterior",
        train_samples: CountOrZero = 1,
        samples: Draws = 100,
        score: Literal["std_sum", "inverse_concentration"] = "inverse_concentration",
        keep_samples: bool = False,
    ) -> None:
        super().__init__(
            geometry=geometry,
            approximation=approximation,
            fidelity=fidelity,
            pairs=pairs,
            triplets=triplets,
            margin=margin,
            negative_weight=negative_weight,
            scale=scale,
            prior=prior,
            prior_precision=prior_precision,
            noise=noise,
            samples=samples,
            score=score,
            keep_samples=keep_samples,
        )
        self.memory, self.initial_curvature, self.normalize = memory, initial_curvature, normalize
        self.train_samples = train_samples

    def objective(self, encoder: Encoder, loss: Loss, *, num_images: int) -> OnlineLaplaceObjective:
        """The run's loss in expectation over the posterior of the last layer."""
        return OnlineLaplaceObjective(
            loss,
            linear_head(encoder),
            self.rule.curvature,
            memory=self.memory,
            initial_curvature=self.initial_curvature if self.initial_curvature >= 0 else float(num_images),
            scale=self.scale if self.scale >= 0 else float(num_images) ** 2,
            per_triplet=self.normalize == "triplets" and self.rule.pairs == "mined",
            prior_precision=self.prior_precision,
            train_samples=self.train_samples,
        )

    def fitted(self, given: Fitting) -> Posterior:
        """The posterior that training learnt, with its record; `batches` serve the record and may be empty.

        `prior="validation"` chooses the precision of the finished posterior, not the one that training drew with.
        """
        if not isinstance(given.loss, OnlineLaplaceObjective):
            raise ValueError(
                "laplace_online needs an encoder trained with its objective; this one was trained with "
                f"{type(given.loss).__name__}. Set `objective: laplace_online` for the method, "
                "or use `laplace` (post-hoc)."
            )
        self._require_validation(given)
        head, kept = linear_head(given.encoder), list[Tensor]()
        with evaluating(given.encoder):
            for _ in self._seen(given, kept):
                if sum(map(len, kept)) >= RECORDED:
                    break
            return self._finished(given, head, given.loss.posterior(), kept)
