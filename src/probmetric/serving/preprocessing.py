"""From an image to the input of an exported network, for programs that have no code of ours.

`Model.preprocess` is what a model does; `preprocess` below does the same with Pillow and NumPy, up to rounding: a grey
level or two after the two resizes. An ONNX file has its `spec` in its metadata, a model folder in its README, with the
function's source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

    from probmetric.data.views import View


def preprocess(image: Image.Image, spec: dict[str, Any]) -> np.ndarray:
    """Return an upright image as network input (1, C, S, S) float32."""
    image = image.convert(spec["mode"])
    if 0 < spec["shorter_side"] < min(image.size):
        scale = spec["shorter_side"] / min(image.size)
        image = image.resize([max(spec["shorter_side"], int(side * scale)) for side in image.size], 2)  # 2: bilinear
    if spec["square"]:
        size = [spec["resize"], spec["resize"]]
    else:
        scale = spec["resize"] / min(image.size)
        size = [max(spec["resize"], int(side * scale)) for side in image.size]
    image = image.resize(size, 2)
    left, top = (round((side - spec["size"]) / 2) for side in size)
    image = image.crop((left, top, left + spec["size"], top + spec["size"]))
    pixels = np.asarray(image, dtype=np.float32).reshape(spec["size"], spec["size"], -1).transpose(2, 0, 1)
    scale, offset = (np.array(spec[name], dtype=np.float32)[:, None, None] for name in ("scale", "offset"))
    return (pixels[spec["channels"]] * scale + offset)[None]


def preprocessing(view: View, shape: tuple[int, int], shorter_side: int) -> dict[str, Any] | None:
    """Return how `preprocess` gives what a view gives; None for a model whose inputs are no images.

    Args:
        view: the evaluation view.
        shape: channels C and side S of the network's input.
        shorter_side: to which preparation reduced images; 0: not.

    Returns:
        mode: RGB or L; shorter_side: larger images are reduced to it first; resize: then the shorter side, or with
        `square` both, become this; size: S of the central crop; channels: which channel of the pixels is which of the
        input; scale, offset: of the values 0 to 255, by channel.
    """
    import torch

    from probmetric.data.views.photos import Photos
    from probmetric.data.views.small import Small

    count, side = shape
    if not isinstance(view, Photos | Small):
        return None
    square = isinstance(view, Photos) and (view.square or not view.shorter)
    black, white = (view.normalise(torch.full((1, count, 1, 1), value)).flatten() for value in (0, 255))
    first = view.normalise(torch.tensor([255] + [0] * (count - 1)).view(1, count, 1, 1)).flatten()
    channels = list(range(count))
    return {
        "mode": "L" if count == 1 else "RGB",
        "shorter_side": shorter_side,
        "resize": (view.shorter or side) if isinstance(view, Photos) else side,
        "square": square,
        "size": side,
        "channels": channels if float(first[0]) == float(white[0]) else channels[::-1],
        "scale": ((white - black) / 255).tolist(),
        "offset": black.tolist(),
    }
