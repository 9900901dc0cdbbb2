"""Write the model card from the model's record alone."""

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
    """Return the card in Markdown: what the model is, its training, its metrics, and the use of its uncertainty."""
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
    """Return Wilson's interval of a share of `count` test images; "" if the value is not a share."""
    if name not in SHARES or not count:
        return ""
    from scipy.stats import binomtest  # imported here because it takes a second, and loading a model does not need it

    low, high = binomtest(round(value * count), count).proportion_ci(method="wilson")
    return f"{low:.4f} to {high:.4f}"
