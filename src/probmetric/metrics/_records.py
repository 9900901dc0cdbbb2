"""What a metric is, and all the library computes: one record each.

A name is `<group>/<name>`, with `ood/<set>/<name>` for out-of-distribution sets. Symbols of the retrieval metrics: a
query has n positives at ranks r₁ < … < rₙ; h(k) = #{j : rⱼ ≤ k}; AP(k) = Σ over rⱼ ≤ k of j / rⱼ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

Direction = Literal["higher", "lower", "none"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: last part of its full name; `{k}` stands for a number, `{score}` for a score of the answer.
        label: what tables and figures call it; made from the name where it is empty.
        direction: whether a higher or a lower value is better; "none" for a descriptive quantity.
        definition: how it is computed, in a line.
        source: papers that use it.
        variant: which variant of the thing `label` names.
        unit: of the value; none for a share or a pure number.
        groups: first parts of its full names: where it is measured.
        computed: module whose functions compute it.
        comparable: whether methods may be ranked by it; not by what judges each method's own answers alone.
    """

    name: str
    label: str
    direction: Direction
    definition: str
    source: str = ""
    variant: str = ""
    unit: str = ""
    groups: tuple[str, ...] = ()
    computed: str = ""
    comparable: bool = True


def _measured(groups: Iterable[str], computed: str, *metrics: Metric) -> tuple[Metric, ...]:
    return tuple(replace(metric, groups=tuple(groups), computed=f"probmetric.{computed}") for metric in metrics)


_RETRIEVAL = _measured(
    (
        *("retrieval", "val/retrieval", "last/retrieval", "retrieval_euclidean", "retrieval_poincare"),
        *("retrieval_day_to_night", "retrieval_night_to_day", "retrieval_sampled"),
    ),
    "evaluation.retrieval",
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
_SPARSIFICATION = _measured(
    ("sparsification", "val/sparsification"),
    "evaluation.selective",
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
_STRUCTURE = (
    Metric(
        "richness_kl",
        "Spectrum KL",
        "none",
        "KL(U ‖ singular values / sum) of the uncentred matrix; lower = more directions in use",
        "000 T5, 001 T3 (ρ)",
    ),
    Metric(
        "richness_kl_without_first",
        "Spectrum KL",
        "none",
        "the same without the largest singular value",
        'their mode "@2"',
        variant="without first",
    ),
    Metric("density", "", "none", "mean distance within classes / between class means, cosine distance", "001 T3 (π)"),
    Metric(
        "uniformity",
        "Uniformity",
        "none",
        "mean over pairs of exp(−2 ‖u − v‖²), no logarithm, self pairs left out",
        "001 T3 (G₂)",
    ),
    *(
        Metric(
            f"concentration_{kind}",
            "",
            "none",
            "spread over classes of the mean distance to the class mean / between means",
            "001 T3 (σ²κ): compare changes, its printed scale is unclear",
        )
        for kind in ("variance", "std")
    ),
    Metric(
        "cluster_diversity",
        "Cluster diversity",
        "none",
        "mean variance of distances within a class",
        "000 T5: relative changes",
    ),
)
_PROXIES = tuple(
    Metric(
        f"proxy_{kind}",
        kind.upper(),
        "lower",
        "least-cost assignment of proxies to distinct embeddings of their class (`proxy_transport`), with "
        "`evaluation.proxies: true`",
        "004 T3 prints `proxy_w1` under the name W2",
        variant="proxy",
    )
    for kind in ("w1", "w2")
)
_CALIBRATION = (
    Metric("ece", "ECE", "lower", "top-label, 15 bins of equal mass, L1"),
    Metric("ece_l2", "ECE", "lower", "the same with the root of the mean square", "what paper 002 prints as ECE", "l2"),
    Metric("ece_equal_width", "ECE", "lower", "15 bins of equal width, L1", "Guo et al. 2017", "equal width"),
    Metric(
        "ece_classwise",
        "ECE",
        "lower",
        "mean over classes of each column's error, equal width",
        "Nixon et al. 2019",
        "classwise",
    ),
    Metric("ece_adaptive", "ECE", "lower", "the same, equal mass", "Nixon et al. 2019", "adaptive"),
    Metric(
        "retrieval_ece",
        "ECE",
        "lower",
        "nearest neighbour in each of S samples; confidence = share of the winning label; 10 bins of equal width",
        variant="retrieval",
    ),
    Metric(
        "retrieval_ece_as_published",
        "ECE",
        "lower",
        "the same with the last bin open, which drops unanimous votes",
        "paper 003's code",
        "retrieval as published",
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
    for metric in _SPARSIFICATION
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
METRICS: tuple[Metric, ...] = (
    *_RETRIEVAL,
    *_measured(
        ("clustering",),
        "evaluation.clustering",
        Metric("nmi", "NMI", "higher", "normalised mutual information, by the arithmetic mean"),
        Metric("ami", "AMI", "higher", "mutual information adjusted for chance"),
        Metric("f1", "F1", "higher", "over pairs of images"),
    ),
    *_measured(("structure", "train/structure"), "evaluation.structure", *_STRUCTURE),
    *_measured(("structure",), "evaluation.structure", *_PROXIES),
    *_SPARSIFICATION,
    *_measured(
        ("classification",),
        "evaluation.classification",
        Metric("accuracy", "Accuracy", "higher", "share of images whose most probable class is right"),
        Metric("nll", "NLL", "lower", "mean −log p(label)"),
        Metric("brier", "Brier score", "lower", "mean Σ (p − onehot)² in [0, 2]"),
        Metric(
            "error_auroc",
            "AUROC",
            "higher",
            "AUROC of the uncertainty for wrongly against rightly classified images",
            "paper 002, table 1",
            "error",
        ),
    ),
    *_measured(("calibration",), "evaluation.calibration", *_CALIBRATION),
    *_measured(("trust",), "evaluation.p_right", *_TRUST),
    *_measured(("p_right", "p_right_val"), "evaluation.p_right", *_P_RIGHT),
    *_measured(("p_right",), "evaluation.selective", *_BY_P_RIGHT),
    *_measured(("exact",), "evaluation.truth", *_EXACT),
    *_measured(
        ("distortion",),
        "evaluation.correlation",
        Metric(
            "spearman",
            "Spearman",
            "higher",
            "rank correlation of the uncertainty with the strength of the images' distortion (`glyphs`), which is not "
            "their ambiguity; `pixel_noise` is its floor",
            variant="distortion strength",
        ),
    ),
    *_measured(
        ("verification",),
        "evaluation.verification",
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
    ),
    *_measured(
        ("ood",),
        "evaluation.ood",
        Metric("auroc", "AUROC", "higher", "P(out is less certain than in), ties half"),
        Metric(
            "auroc_{score}",
            "AUROC",
            "higher",
            "the same for a score of the answer, a test image",
        ),
        Metric(
            "scod_auroc",
            "AUROC",
            "higher",
            "P(a wrong answer or a stranger is less certain than a right answer)",
            "selective classification in the presence of strangers",
            variant="errors and strangers",
        ),
        Metric(
            "scod_auroc_{score}",
            "AUROC",
            "higher",
            "the same for a score of the answer",
            variant="errors and strangers",
        ),
        Metric("auprc", "AUPRC", "higher", "average precision, out is positive"),
        Metric(
            "auprc_trapezoid",
            "AUPRC",
            "higher",
            "area under the linearly joined precision-recall curve; optimistic",
            "paper 003",
            "trapezoid",
        ),
        Metric(
            "fpr_at_95",
            "FPR@95",
            "lower",
            "share of in-distribution images flagged when at least 95 % of the others are",
        ),
        Metric("base_rate", "", "none", "share of out-of-distribution images, the `auprc` of chance"),
    ),
    *_measured(
        ("training",),
        "reporting.aggregate",
        Metric("epoch_seconds", "Seconds per epoch", "lower", "leaves out the first epoch; of the machine", unit="s"),
        Metric("seconds", "Seconds", "lower", "of all epochs; of the machine", unit="s"),
        Metric("epochs", "", "none", "epochs trained"),
    ),
    *_measured(
        ("embedding",),
        "pipeline",
        Metric(
            "test_seconds",
            "Seconds to embed the test images",
            "lower",
            "test images on disk to distributions on the CPU, after the validation images have warmed everything up",
            unit="s",
        ),
        Metric("images_per_second", "Images/s", "higher", "the same; of the machine", unit="1/s"),
    ),
)
