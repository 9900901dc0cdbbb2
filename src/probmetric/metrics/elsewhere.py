"""Metrics that rooms above compute: of answers, of training and of embedding.

Of answers: what scores add, P(right), and what could be known at best.
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
        free | AUROC (error, free scores) ↑ | error AUROC of the free scores together: logistic, cross-fitted over parts
            of the classes
        both | AUROC (error, free and own) ↑ | the same with the own uncertainty and the method's scores of the pair
        added | AUROC added ↑ | `both` - `free`: what the method's uncertainty adds to what is free
        added_low | AUROC added (lower end) ↑ | lower end of its 95 % interval; classes drawn again, paired
        added_high | AUROC added (upper end) ↑ | upper end of its 95 % interval
        """,
    ),
    *table(
        "p_right p_right_val",
        "probmetric.trust.p_right",
        """
        nll | NLL ↓ | mean −log P(what happened), answer right or wrong
        brier | Brier score ↓ | mean (P(right) − right)²
        ece | ECE ↓ | 15 bins of equal mass, L1
        ece_floor | ECE (floor) | mean `ece` of so many answers if every P(right) were true
        """,
    ),
    *(
        replace(
            metric,
            groups=("p_right",),
            definition=f"of P(right) in place of the own uncertainty: {metric.definition}",
        )
        for metric in selective.METRICS
        if metric.name in BY_P_RIGHT
    ),
    *table(
        "exact",
        "probmetric.trust.truth",
        """
        bayes_accuracy | Bayes accuracy | mean largest P(class ∣ image): no classifier is right more often
        bayes_ece | ECE (Bayes) | of the exact posterior: sampling error alone
        retrieval_regret | Accuracy regret (retrieval) ↓ | `bayes_accuracy` minus the mean P(answer ∣ image): what the
            retrieval loses, whatever the uncertainty
        error_auroc | AUROC (error, best of the answer) | error AUROC of 1 − P(answer ∣ image), for the run's own
            answers: a Bayes classifier, which knows the class
        image_auroc | AUROC (error, of the image's noise) | error AUROC of the entropy of P(class ∣ image), for the
            same answers: it knows the noise, not the answer
        image_auroc_regret | AUROC regret (own, against the noise) ↓ | that minus the own uncertainty's; below 0 where
            it knows more than the noise
        error_auroc_regret | AUROC regret (own) ↓ | `exact/error_auroc` minus the own uncertainty's
        free_auroc_regret | AUROC regret (free scores) ↓ | `exact/error_auroc` minus `trust/free`
        p_right_regret | Log-score regret ↓ not between methods | `p_right/nll` minus the NLL of P(answer ∣ image), in
            nats, of retrieval and uncertainty together; of a method's own answers, so no method is called best: one
            that is nearly always wrong loses little
        aleatoric_spearman | Spearman (aleatoric) ↑ | rank correlation of the own uncertainty with the entropy of
            P(class ∣ image)
        """,
    ),
    *table(
        "training",
        "probmetric.reporting.results",
        """
        epoch_seconds | Seconds per epoch [s] ↓ | leaves out the first epoch; of the machine
        seconds | Seconds [s] ↓ | of all epochs; of the machine
        epochs | | epochs trained
        late_gain | Late gain | best validation metric of the last fifth of epochs over the best before, less one
        """,
    ),
    *table(
        "embedding",
        "probmetric.runs.embed",
        """
        test_seconds | Seconds to embed the test images [s] ↓ | test images on disk to distributions on the CPU, after
            the validation images have warmed everything up
        images_per_second | Images/s [1/s] ↑ | the same; of the machine
        """,
    ),
)
