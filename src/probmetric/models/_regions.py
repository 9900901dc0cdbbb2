"""Why two images match: the regions of one image that make its cosine with the other.

The raw embedding z(a) of an image comes from a feature map f (C, H, W) of the encoder. With u(b) the unit embedding of
the other image, the share of position p is

    r_p = sum_c f_cp d(z(a) . u(b)) / d f_cp / |z(a)|

If z is a mean over positions, with or without a linear head, z is linear in f. The shares and the part of the head's
bias then sum to the cosine exactly. For other poolings and for transformers a share is gradient times activation, and
the sum differs from the cosine. `draw_match` draws the shares.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

GAP, DIMMED = 8, 0.25


def cosine_regions(encoder: nn.Module, images: Tensor, others: Tensor) -> Tensor | None:
    """Return how regions of `images` (B, C, S, S) make their cosines with the unit embeddings `others` (B, M).

    Returns:
        The shares (B, H, W), on the grid of the last feature map with a share; None for an encoder without feature
        maps.
    """
    maps: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor) and _side(output):
            maps.append(output)

    hooks = [module.register_forward_hook(keep) for module in encoder.modules()]
    try:
        with torch.enable_grad():
            embeddings = encoder(images.detach().requires_grad_(True))
            if not maps:
                return None
            lengths = embeddings.detach().norm(dim=1).clamp_min(1e-12)
            cosines = (embeddings * others).sum(dim=1) / lengths
            gradients = torch.autograd.grad(cosines.sum(), maps, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    for values, gradient in zip(reversed(maps), reversed(gradients), strict=True):
        if gradient is None:
            continue
        shares = _shares(values * gradient)
        if shares.any():  # a class token may be all that counts
            return shares
    return None


def _shares(products: Tensor) -> Tensor:
    """Return the sum over channels (B, H, W) of a map, or of tokens; a class token, which comes first, is left out."""
    if products.ndim == 4:
        return products.detach().sum(dim=1)
    side = _side(products)
    return products.detach().sum(dim=2)[:, -side * side :].unflatten(1, (side, side))


def _side(output: Tensor) -> int:
    """Return the side of a map (B, C, H, W), or of the grid of tokens (B, N, C), with or without a class token.

    It is 0 for other outputs, and for a map of a single position.
    """
    if output.ndim == 4:
        return output.shape[2] if min(output.shape[2:]) > 1 else 0
    if output.ndim == 3:
        counts = (output.shape[1], output.shape[1] - 1)
        return next((side for count in counts if (side := math.isqrt(count)) > 1 and side**2 == count), 0)
    return 0


def draw_match(encoder: nn.Module, pair: Tensor, side: int) -> Image.Image | None:
    """Draw two images, network inputs (2, C, S, S), side by side, bright where they make their cosine.

    The region with the largest share keeps its colours; regions with a share of zero or below are dimmed.

    Returns:
        A picture of height `side`; None for an encoder without feature maps.
    """
    with torch.no_grad():
        units = F.normalize(encoder(pair), dim=1)
    shares = cosine_regions(encoder, pair, units.flip(0))
    if shares is None:
        return None
    weights = F.interpolate(shares.clamp_min(0)[:, None], size=pair.shape[2:], mode="bicubic")
    weights = (weights / weights.amax((1, 2, 3), keepdim=True).clamp_min(1e-12)).clamp(0, 1)
    low, high = pair.amin((1, 2, 3), keepdim=True), pair.amax((1, 2, 3), keepdim=True)
    pixels = (pair - low) / (high - low).clamp_min(1e-12) * (DIMMED + (1 - DIMMED) * weights)
    picture = Image.new("RGB", (2 * side + GAP, side), "gray")
    for place, image in enumerate((255 * pixels).byte().expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().numpy()):
        drawn = Image.fromarray(np.ascontiguousarray(image)).resize((side, side), Image.Resampling.BICUBIC)
        picture.paste(drawn, (place * (side + GAP), 0))
    return picture
