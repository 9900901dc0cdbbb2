"""Draw why two images match, as files: `search --explain`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probmetric.errors import ServingError
from probmetric.io.folders import new_folder
from probmetric.models._regions import draw_match
from probmetric.serving.model import Model
from probmetric.serving.search import Answer

SIDE = 320
WHAT = "explanations of matches"


def explain(model: Model, answers: Sequence[Answer], folder: Path) -> list[Path]:
    """Write a picture `<number>.png` of every answer and its nearest image into `folder`; return their paths.

    Both images are files at the paths that the answer names (`models._regions.draw_match`).

    Raises:
        DataError: an image cannot be read.
        ServingError: the encoder has no feature maps, so no regions.
    """
    encoder = model.predictor.encoder
    shown = [(answer.image, answer.matches[0].path) for answer in answers if answer.matches]
    with new_folder(folder, WHAT) as new:
        for number, pair in enumerate(shown, start=1):
            seen = model.preprocess(list(pair)).to(next(encoder.parameters()).device)
            picture = draw_match(encoder, seen, SIDE)
            if picture is None:
                raise ServingError(
                    f"the encoder of {model.name} has no feature maps, so no regions: leave out --explain."
                )
            picture.save(new / f"{number}.png")
    return [folder / f"{number}.png" for number in range(1, len(shown) + 1)]
