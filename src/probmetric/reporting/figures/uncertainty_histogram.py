"""Uncertainty of test images and of out-of-distribution images (companion of paper 003, figure 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probmetric.reporting.figures import _data, _histograms, _style, register

if TYPE_CHECKING:
    from probmetric.reporting.experiment import ReportContext

TITLE = "Uncertainty of test and out-of-distribution images"


@register
def draw(context: ReportContext) -> _style.Drawing:
    """One panel per dataset and method that was evaluated on out-of-distribution images (its first seed)."""
    panels, areas = {}, []
    for (data, variant), run in _data.first_runs(context, "uncertainty").items():
        strange = run.tensors("ood", "uncertainty").get("uncertainty")
        if strange is not None and len(strange):
            own = run.tensors("test", "uncertainty")["uncertainty"]
            area = _histograms.chance_larger(strange, own)
            title = f"{_data.group_title(data)}\n{context.label(variant)}"
            panels[title] = _histograms.Groups(own, strange, f"{area:.2f}")
            areas.append(f"{title.replace(chr(10), ', ')}: {area:.2f}")
    if not panels:
        return _style.nothing(TITLE, "no run of this experiment was evaluated on out-of-distribution images.")
    figure = _histograms.histogram_panels(panels, ("test images", "out-of-distribution images"), "uncertainty")
    caption = (
        "Share of images by their uncertainty, for test images and images of other datasets; dashed: medians; in the "
        "corner: AUROC, the chance that the strange image is the less certain one; first seed. Each method has its own "
        "scale."
    )
    return _style.Drawing(figure, TITLE, caption, f"Histograms. AUROC: {'; '.join(areas)}.")
