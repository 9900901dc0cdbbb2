"""Of uncertainties: whether they tell wrong answers, what they add to what is free, what could be known."""

from __future__ import annotations

from dataclasses import replace

from probmetric.metrics._metric import Metric, measured

SPARSIFICATION = measured(
    ("sparsification", "val/sparsification"),
    "metrics.selective",
    Metric(
        "ausc",
        "AUSC",
        "higher",
        "area under accuracy against share removed (0..98 %, most uncertain first), divided by its width",
    ),
    Metric(
        "ausc_as_published",
        "AUSC",
        "higher",
        "the same with dx = 1/99, at most 98/99; the evaluator uses the mean of the query's and the neighbour's "
        "uncertainty here",
        "paper 003",
        variant="as published",
    ),
    Metric(
        "ausc_as_published_empty_as_zero",
        "AUSC",
        "higher",
        "the same with queries without positives counted as errors; others are left out above",
        "paper 003 as released",
        variant="as published empty as zero",
    ),
    Metric("ausc_query_and_neighbour", "AUSC", "higher", "`ausc` with that mean", variant="query and neighbour"),
    Metric("ausc_gap_to_oracle", "AUSC gap to oracle", "lower", "area when the wrong answers go first, minus `ausc`"),
    Metric("aurc", "AURC", "lower", "mean error rate over coverages 1/N, ..., 1"),
    Metric(
        "error_auroc",
        "AUROC",
        "higher",
        "P(a wrong answer is less certain than a right one)",
        "paper 002's AUROC of the norm, with uncertainty = −norm",
        variant="error",
    ),
    Metric(
        "error_auroc_{score}",
        "AUROC",
        "higher",
        "the same for a score of the answer (`probmetric list scores`) in place of the own uncertainty",
        variant="error",
    ),
    Metric(
        "augrc",
        "AUGRC",
        "lower",
        "area under the share of all images that are answered and wrong, against coverage",
        "Traub et al. 2024",
    ),
    Metric("e_aurc", "E-AURC", "lower", "`aurc` minus that of the best order", "Geifman et al. 2019"),
    Metric("risk_at_coverage_80", "Risk", "lower", "error rate of the surest 80 %", variant="at coverage 80"),
    Metric(
        "coverage_at_risk_5",
        "Coverage",
        "higher",
        "largest share of the surest of whom at most 5 % are wrong",
        variant="at risk 5",
    ),
    *(
        Metric(
            f"accuracy_at_coverage_{share}",
            "Accuracy",
            "higher",
            "accuracy of the surest so many %",
            variant=f"at coverage {share}",
        )
        for share in (50, 80, 90)
    ),
)

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
    for metric in SPARSIFICATION
    if metric.name in ("augrc", "e_aurc", "risk_at_coverage_80", "coverage_at_risk_5")
    and metric.groups == ("sparsification", "val/sparsification")
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
    *measured(("trust",), "trust.p_right", *_TRUST),
    *measured(("p_right", "p_right_val"), "trust.p_right", *_P_RIGHT),
    *measured(("p_right",), "metrics.selective", *_BY_P_RIGHT),
    *measured(("exact",), "trust.truth", *_EXACT),
)

DISTORTION = measured(
    ("distortion",),
    "metrics.correlation",
    Metric(
        "spearman",
        "Spearman",
        "higher",
        "rank correlation of the uncertainty with the strength of the images' distortion (`glyphs`), which is not "
        "their ambiguity; `pixel_noise` is its floor",
        variant="distortion strength",
    ),
)
