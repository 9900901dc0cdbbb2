"""Of where embeddings and proxies lie."""

from __future__ import annotations

from probmetric.metrics._metric import Metric, measured

CLUSTERING = measured(
    ("clustering",),
    "metrics.clustering",
    Metric("nmi", "NMI", "higher", "normalised mutual information, by the arithmetic mean"),
    Metric("ami", "AMI", "higher", "mutual information adjusted for chance"),
    Metric("f1", "F1", "higher", "over pairs of images"),
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

STRUCTURE = (
    *measured(("structure", "train/structure"), "metrics.structure", *_STRUCTURE),
    *measured(("structure",), "metrics.structure", *_PROXIES),
)
