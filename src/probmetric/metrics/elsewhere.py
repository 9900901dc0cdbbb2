"""List the metrics that `trust`, `reporting` and `runs` compute.

They measure answers (what scores add, how true P(right) is, what the best score could know), training and embedding.
"""

from __future__ import annotations

from dataclasses import replace

from probmetric.metrics import selective
from probmetric.metrics.record import table

BY_P_RIGHT = ("augrc", "e_aurc", "risk_at_coverage_80", "coverage_at_risk_5")

METRICS = (
    *table(
        "trust",
        "probmetric.trust.p_right",
        """
        free | AUROC (error, free scores) ↑ | P(a wrong answer has a lower P(right) than a right answer); P(right) from
            all free scores, by a logistic map fitted on other classes
        both | AUROC (error, free and own) ↑ | the AUROC of `trust/free`, with the own uncertainty and the method's
            scores of query and answer as further inputs of the map
        added | AUROC added ↑ | `trust/both` minus `trust/free`: what the method's uncertainty adds to the free scores
        added_low | AUROC added (lower end) ↑ | lower end of the 95 % interval of `trust/added`, over bootstrap samples
            of the classes
        added_high | AUROC added (upper end) ↑ | upper end of the 95 % interval of `trust/added`, over bootstrap samples
            of the classes
        """,
    ),
    *table(
        "p_right p_right_val",
        "probmetric.trust.p_right",
        """
        nll | NLL ↓ | mean over answers of −log q; q = P(right) if the answer is right, 1 − P(right) if it is wrong
        brier | Brier score ↓ | mean over answers of (P(right) − y)²; y = 1 if the answer is right, 0 if it is wrong
        ece | ECE ↓ | mean distance between P(right) and the share of right answers, over 15 bins that hold equally many
            answers
        ece_floor | ECE (floor) | mean `ece` that this number of answers would have if every P(right) were true
        """,
    ),
    *(
        replace(
            metric,
            groups=("p_right",),
            definition=f"with 1 − P(right) as the uncertainty: {metric.definition}",
        )
        for metric in selective.METRICS
        if metric.name in BY_P_RIGHT
    ),
    *table(
        "exact",
        "probmetric.trust.truth",
        """
        bayes_accuracy | Bayes accuracy | mean over images of the largest P(class ∣ image); no classifier is right more
            often
        bayes_ece | ECE (Bayes) | calibration error of the largest P(class ∣ image); this probability is exact, so only
            sampling error is left
        retrieval_regret | Accuracy regret (retrieval) ↓ | `exact/bayes_accuracy` minus the mean P(answer ∣ image):
            accuracy that the retrieval loses, whatever the uncertainty
        error_auroc | AUROC (error, best of the answer) | `sparsification/error_auroc` for the run's own answers, with 1
            − P(answer ∣ image) as the uncertainty: a Bayes classifier, which knows the class probabilities
        image_auroc | AUROC (error, of the image's noise) | `sparsification/error_auroc` for the run's own answers, with
            the entropy of P(class ∣ image) as the uncertainty: it knows the image's noise, not the answer
        image_auroc_regret | AUROC regret (own, against the noise) ↓ | `exact/image_auroc` minus the error AUROC of the
            own uncertainty; below 0 where the own uncertainty knows more than the noise
        error_auroc_regret | AUROC regret (own) ↓ | `exact/error_auroc` minus the error AUROC of the own uncertainty
        free_auroc_regret | AUROC regret (free scores) ↓ | `exact/error_auroc` minus `trust/free`
        p_right_regret | Log-score regret ↓ not between methods | `p_right/nll` minus the NLL of P(answer ∣ image), in
            nats; retrieval and uncertainty cause it together. Each method is judged on its own answers, and one that is
            nearly always wrong loses little, so no method is called best
        aleatoric_spearman | Spearman (aleatoric) ↑ | rank correlation of the own uncertainty with the entropy of
            P(class ∣ image)
        """,
    ),
    *table(
        "training",
        "probmetric.reporting.results",
        """
        epoch_seconds | Seconds per epoch [s] ↓ | mean time of an epoch, without the first one; depends on the machine
        seconds | Seconds [s] ↓ | time of all epochs together; depends on the machine
        epochs | | number of epochs trained
        late_gain | Late gain | best validation metric of the last fifth of the epochs, divided by the best of the
            epochs before, minus 1
        """,
    ),
    *table(
        "embedding",
        "probmetric.runs.embed",
        """
        test_seconds | Seconds to embed the test images [s] ↓ | time from the test images on disk to their distributions
            on the CPU; the validation images are embedded first, as a warm-up
        images_per_second | Images/s [1/s] ↑ | number of test images divided by `embedding/test_seconds`; depends on the
            machine
        """,
    ),
)
