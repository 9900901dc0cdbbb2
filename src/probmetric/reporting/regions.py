"""Which regions of two test images make their match, drawn for the page (`models._regions`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np
from PIL import Image

from probmetric.reporting.experiment import ReportContext
from probmetric.runs.folder import RunFolder

SIDE = 112
LEAST = 64  # pixels: of a smaller image there are no regions worth a look, nor the seconds that PyTorch takes to load


def drawn_matches(context: ReportContext, run: RunFolder, pairs: Sequence[tuple[int, int]]) -> list[Image.Image]:
    """Draw pairs of rows of the test split as the encoder of a run sees them.

    Returns:
        A picture of each pair; none where images are small, the run combines several encoders, the weights are not
        here, the encoder has no feature maps, or PyTorch is not installed.
    """
    trained = RunFolder.named(run.find("encoder", default=run.key.run), context.results)
    if run.find("members") or not trained.trained or importlib.util.find_spec("torch") is None:
        return []
    facts = trained.encoder["encoder"]
    if facts["image_size"] < LEAST:
        return []
    import torch

    from probmetric.data.images import Eye, PreparedImages
    from probmetric.models._regions import draw_match
    from probmetric.training.assemble import load_encoder
    from probmetric.training.data import training_view

    made = load_encoder(trained.path)
    view = training_view(made.settings, context.prepared / trained.key.data).evaluation()
    eye = Eye(view, (facts["in_channels"], facts["image_size"]))
    images = PreparedImages.of_split(context.prepared / run.key.data, "test")
    shown = [torch.cat([eye.load(images.load(np.array([row]))) for row in pair]) for pair in pairs]
    drawn = [draw_match(made.encoder, view.normalise(pair), SIDE) for pair in shown]
    return [picture for picture in drawn if picture is not None]
