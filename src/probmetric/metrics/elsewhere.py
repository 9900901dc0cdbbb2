"""Metrics that other rooms compute: P(right) and what scores add, what could be known at best, and time."""

from __future__ import annotations

from dataclasses import replace

from probmetric.metrics import selective
from probmetric.metrics.record import Metric, measured

_TRUST = (
    Metric(
        "free",
        "AUROC",
        "higher",
        "error AUROC of the free scores together: logistic, cross-fitted over parts of the classes",
        variant="error, free scores",
    ),
    Metric(
        "both",
        "AUROC",
        "higher",
        "the same with the own uncertainty and the method's scores of the pair",
        variant="error, free and own",
    ),
    Metric("added", "AUROC added", "higher", "`both` - `free`: what the method's uncertainty adds to what is free"),
    Metric(
        "added_low",
        "AUROC added",
        "higher",
        "lower end of its 95 % interval; classes drawn again, paired",
        variant="lower end",
    ),
    Metric("added_high", "AUROC added", "higher", "upper end of its 95 % interval", variant="upper end"),
)
_P_RIGHT = (
    Metric("nll", "NLL", "lower", "mean −log P(what happened), answer right or wrong"),
    Metric("brier", "Brier score", "lower", "mean (P(right) − right)²"),
    Metric("ece", "ECE", "lower", "15 bins of equal mass, L1"),
    Metric("ece_floor", "ECE", "none", "mean `ece` of so many answers if every P(right) were true", variant="floor"),
)
_BY_P_RIGHT = tuple(
    replace(
        metric,
        definition=f"of P(right) in place of the own uncertainty: {metric.definition}",
        variant=f"{metric.variant}, by P(right)" if metric.variant else "by P(right)",
    )
    for metric in selective.METRICS
    if metric.name in ("augrc", "e_aurc", "risk_at_coverage_80", "coverage_at_risk_5")
)
_EXACT = (
    Metric(
        "bayes_accuracy", "Bayes accuracy", "none", "mean largest P(class ∣ image): no classifier is right more often"
    ),
    Metric("bayes_ece", "ECE", "none", "of the exact posterior: sampling error alone", variant="Bayes"),
    Metric(
        "error_auroc",
        "AUROC",
        "none",
        "error AUROC of 1 − P(answer ∣ image), exact: what a score of these answers can reach",
        variant="error, exact",
    ),
    Metric("error_auroc_regret", "AUROC regret", "lower", "that minus the own uncertainty's", variant="own"),
    Metric("free_auroc_regret", "AUROC regret", "lower", "that minus `trust/free`", variant="free scores"),
    Metric(
        "p_right_regret",
        "Log-score regret",
        "lower",
        "`p_right/nll` minus the NLL of P(answer ∣ image), in nats; of a method's own answers, so no method is called "
        "best: one that is nearly always wrong loses little",
        comparable=False,
    ),
    Metric(
        "aleatoric_spearman",
        "Spearman",
        "higher",
        "rank correlation of the own uncertainty with the entropy of P(class ∣ image)",
        variant="aleatoric",
    ),
)

TRUST = (
    *measured(("trust",), "probmetric.trust.p_right", *_TRUST),
    *measured(("p_right", "p_right_val"), "probmetric.trust.p_right", *_P_RIGHT),
    *measured(("p_right",), "probmetric.metrics.selective", *_BY_P_RIGHT),
    *measured(("exact",), "probmetric.trust.truth", *_EXACT),
)

TRAINING = measured(
    ("training",),
    "probmetric.reporting.results",
    Metric("epoch_seconds", "Seconds per epoch", "lower", "leaves out the first epoch; of the machine", unit="s"),
    Metric("seconds", "Seconds", "lower", "of all epochs; of the machine", unit="s"),
    Metric("epochs", "", "none", "epochs trained"),
    Metric(
        "late_gain",
        "Late gain",
        "none",
        "best validation metric of the last fifth of epochs over the best before, less one; above .01 not converged",
    ),
)

EMBEDDING = measured(
    ("embedding",),
    "probmetric.runs.steps",
    Metric(
        "test_seconds",
        "Seconds to embed the test images",
        "lower",
        "test images on disk to distributions on the CPU, after the validation images have warmed everything up",
        unit="s",
    ),
    Metric("images_per_second", "Images/s", "higher", "the same; of the machine", unit="1/s"),
)
