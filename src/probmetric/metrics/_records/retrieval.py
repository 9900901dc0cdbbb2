"""Of ranked lists of images, and of pairs told to be the same or not.

A query has n positives at ranks r₁ < … < rₙ; h(k) = #{j : rⱼ ≤ k}; AP(k) = Σ over rⱼ ≤ k of j / rⱼ.
"""

from __future__ import annotations

from probmetric.metrics._metric import Metric, measured

RETRIEVAL = measured(
    (
        *("retrieval", "val/retrieval", "last/retrieval", "retrieval_euclidean", "retrieval_poincare"),
        *("retrieval_day_to_night", "retrieval_night_to_day", "retrieval_sampled"),
    ),
    "retrieval.measures",
    Metric(
        "recall_at_{k}",
        "Recall@{k}",
        "higher",
        "1 if r₁ ≤ k",
        'all papers; paper 003 prints recall@1 as "mAP@1", with `empty="zero"`. It is not the recall of information '
        "retrieval",
    ),
    Metric(
        "recall_at_1_empty_as_zero",
        "Recall@1",
        "higher",
        "recall@1 with 0 for a query without positives",
        "paper 003 as released",
        variant="empty as zero",
    ),
    Metric("precision_at_{k}", "Precision@{k}", "higher", "h(k) / k", "MLRC (k = 1)"),
    Metric("r_precision", "R-precision", "higher", "h(n) / n", "MLRC, paper 004"),
    Metric("map_at_r", "MAP@R", "higher", "AP(n) / n", "papers 002, 004, MLRC"),
    *(Metric(f"map_at_{k}", f"MAP@{k}", "higher", "AP(k) / min(n, k)", "paper 003") for k in (5, 10, 20)),
    *(
        Metric(
            f"map_at_{k}_empty_as_one",
            f"MAP@{k}",
            "higher",
            "the same, with 1 for a query without positives",
            "paper 003 as released; inflates LFW, where most people have one image",
            variant="empty as one",
        )
        for k in (5, 10, 20)
    ),
    Metric(
        "map_at_1000",
        "MAP@1000",
        "higher",
        "AP(1000) / min(n, 1000)",
        "the attainable version of papers 000, 001",
    ),
    Metric(
        "map_at_1000_over_class_size",
        "MAP@1000",
        "higher",
        "AP(1000) / (n + 1)",
        "papers 000, 001 as released; at most n / (n + 1)",
        variant="over class size",
    ),
    Metric(
        "map_at_class_size",
        "MAP@class size",
        "higher",
        "AP(n + 1) / (n + 1)",
        'papers 000, 001 as released ("mAP@C")',
    ),
    Metric("mrr", "MRR", "higher", "1 / r₁"),
    Metric("queries_without_positives", "", "none", "their number; they are left out of the means"),
)

VERIFICATION = measured(
    ("verification",),
    "metrics.verification",
    Metric(
        "accuracy",
        "Accuracy",
        "higher",
        "pairs told right; each tenth by the threshold that is best on the other nine",
    ),
    Metric("auroc", "AUROC", "higher", "over all thresholds of the cosine"),
    Metric("eer", "Equal error rate", "lower", "where as many are refused wrongly as are accepted wrongly"),
    Metric("tar_at_far_1", "TAR at 1 % FAR", "higher", "true accepts at 1 % false accepts"),
    Metric(
        "edc",
        "FNMR under discard",
        "lower",
        "mean share of genuine pairs refused, at the threshold of 1 % false accepts of all pairs, while 0..20 % of "
        "the pairs are discarded, those with the least certain image first",
        "error versus discard, ISO/IEC 29794-1:2024",
    ),
)
