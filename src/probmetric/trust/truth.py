"""Judge a run against the exact posterior, where the dataset has one (`letters_exact`).

If query x is answered with class a, P(right) = P(a | x) is known. Two scores show what a doubt could know. The score of
the answer, 1 - P(a | x), is a Bayes classifier: it knows the letter, so it knows whether the answer is wrong. The score
of the image, the entropy of P(class | x), knows how much the noise hides, but not the answer; compare with it an
uncertainty that is made from the image alone. If a is not the likeliest class, the loss is due to the retrieval.

    bayes_accuracy         mean of the largest P(class | image): no classifier of the image is right more often
    bayes_ece              calibration error of the largest P(class | image): sampling error alone
    retrieval_regret       bayes_accuracy minus the mean P(answer | image): what the retrieval loses
    error_auroc            error AUROC of the score of the answer, for the run's own answers
    error_auroc_regret     error_auroc minus the error AUROC of the own uncertainty
    free_auroc_regret      error_auroc minus that of all free scores, cross-fitted (`trust/free`)
    image_auroc            error AUROC of the score of the image, for the run's own answers
    image_auroc_regret     image_auroc minus the error AUROC of the own uncertainty; below 0 where the uncertainty knows
                           more than the noise
    p_right_regret         NLL of the cross-fitted P(right) minus that of P(answer | image), in nats: loss of retrieval
                           and uncertainty together
    aleatoric_spearman     rank correlation of the own uncertainty with the entropy of P(class | image)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from probmetric.metrics.arrays import Doubles, Ints
from probmetric.metrics.calibration import calibration_error
from probmetric.metrics.correlation import spearman
from probmetric.metrics.ood import auroc
from probmetric.trust.answers import Answers, cross_fitted_free
from probmetric.trust.p_right import p_right_metrics


@dataclass(frozen=True)
class Truth:
    """Hold the exact `posterior` (Q,C) of Q images, and the label of each column, `classes` (C,)."""

    posterior: Doubles
    classes: Ints

    def of(self, labels: Any) -> Doubles:
        """Return P(label | image) (Q,) for `labels` (Q,); 0 for a class without a column."""
        place = np.searchsorted(self.classes, labels).clip(max=len(self.classes) - 1)
        return np.where(self.classes[place] == labels, self.posterior[np.arange(len(place)), place], 0.0)

    @property
    def entropy(self) -> Doubles:
        """Entropy (Q,) of the posterior, in nats."""
        return -(self.posterior * np.log(np.maximum(self.posterior, 1e-300))).sum(axis=1)


def truth_metrics(answers: Answers, truth: Truth, *, seed: int = 0) -> dict[str, float]:
    """Return `exact/...` of the module docstring for answers to the same Q queries, without undefined values."""
    best = truth.posterior.max(axis=1)
    hit = truth.classes[truth.posterior.argmax(axis=1)] == answers.label
    metrics = {
        "bayes_accuracy": float(best.mean()),
        "bayes_ece": calibration_error(np.minimum(best, 1.0), hit),
        "retrieval_regret": float((best - truth.of(answers.match.classes[:, 0])).mean()),
        "aleatoric_spearman": spearman(answers.own, truth.entropy),
    }
    kept, stated = answers.asked, cross_fitted_free(answers, seed=seed)
    right, exact = answers.right[kept], truth.of(answers.match.classes[:, 0])[kept]
    if answers.told_apart:
        ceiling = auroc(-exact[right], -exact[~right])
        scores = (answers.own[kept], truth.entropy[kept])
        of_own, of_image = (auroc(score[right], score[~right]) for score in scores)
        metrics |= {"error_auroc": ceiling, "error_auroc_regret": ceiling - of_own}
        metrics |= {"image_auroc": of_image, "image_auroc_regret": of_image - of_own}
    if stated is not None:
        metrics["free_auroc_regret"] = ceiling - auroc(-stated[right], -stated[~right])
        metrics["p_right_regret"] = p_right_metrics(stated, right)["nll"] - p_right_metrics(exact, right)["nll"]
    return {f"exact/{name}": value for name, value in metrics.items() if math.isfinite(value)}
