"""The model card, written from the record alone."""

from __future__ import annotations

from probmetric.reporting.words import component_words, templates
from probmetric.serving.export import preprocessing, preprocessing_code
from probmetric.serving.record import ModelRecord

SHOWN = {
    "retrieval/recall_at_1": "Recall@1",
    "retrieval/map_at_r": "MAP@R",
    "classification/accuracy": "accuracy",
    "calibration/ece": "expected calibration error",
}
RANKED = {
    "sparsification/error_auroc": "telling its wrong answers from right ones",
    "ood/auroc": "telling strangers (the OOD sets) from test images",
}
SHARES = ("retrieval/recall_at_1", "classification/accuracy")
GOOD = 0.6


def card(record: ModelRecord) -> str:
    """Return in Markdown what the model is, what it was trained and measured on, what its uncertainty is good for."""
    member, data = record.members[0], record.provenance.get("data", {})
    tested = data.get("splits", {}).get("test", {}).get("images", 0)
    measured = {name: value for name in SHOWN if (value := record.metrics.get(name)) is not None}
    template = templates().get_template("card.md.j2")
    return template.render(
        record=record,
        facts=member.facts,
        settings=member.settings,
        network=member.network,
        tensor=record.transform.tensor,
        data=data,
        measured=[(SHOWN[name], value, _interval(name, value, tested)) for name, value in measured.items()],
        ranked=[(use, record.metrics.get(name)) for name, use in RANKED.items()],
        good=GOOD,
        spec=preprocessing(record.transform.created(), record.shape, record.transform.shorter_side),
        source=preprocessing_code(),
        words=lambda component: component_words(component.name, component.options),
    )


def _interval(name: str, value: float, count: int) -> str:
    """Return Wilson's interval of a share of `count` test images; nothing for what is no share."""
    if name not in SHARES or not count:
        return ""
    from scipy.stats import binomtest  # a second, which loading a model need not wait for

    low, high = binomtest(round(value * count), count).proportion_ci(method="wilson")
    return f"{low:.4f} to {high:.4f}"
