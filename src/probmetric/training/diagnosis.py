"""Messages for a loss or gradients that are not finite."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from probmetric.errors import ProbMetricError


class TrainingError(ProbMetricError, RuntimeError):
    """Training cannot go on; the message says where it stopped and what to do."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite; the message names step, images and the offending tensor."""


class NonFiniteGradientError(TrainingError):
    """Too many steps in a row had gradients that are not finite."""


def non_finite_loss(
    *, loss: float, epoch: int, step: int, index: Tensor, embeddings: Tensor, modules: dict[str, nn.Module]
) -> NonFiniteLossError:
    """Describe a loss that is not finite.

    Args:
        loss: its value.
        epoch: epoch, from 0.
        step: optimiser step of the whole run, from 0.
        index: manifest rows of the batch (B,).
        embeddings: the loss's input (B, M).
        modules: "encoder" and "loss".
    """
    rows = (~torch.isfinite(embeddings.detach())).any(dim=1).nonzero().flatten().cpu()
    parameters = list(_bad_tensors(modules))
    if parameters:
        cause = f"not finite: {', '.join(parameters[:5])}"
    elif len(rows):
        shown = ", ".join(f"row {int(row)} (image {int(index[row])})" for row in rows[:5])
        cause = f"not finite: embeddings, {len(rows)} of {len(embeddings)} rows: {shown}"
    else:
        norms = embeddings.detach().float().norm(dim=1)
        cause = (
            f"embeddings and parameters are finite (norms {norms.min():.3g} to {norms.max():.3g}): "
            "the loss overflows by itself"
        )
    return NonFiniteLossError(
        f"the loss is {loss} at epoch {epoch}, step {step}; {cause}. Images of the batch (manifest rows): "
        f"{', '.join(str(int(i)) for i in index)}. Lower training.learning_rate, set training.gradient_clip, or "
        "check these images, and run again."
    )


def non_finite_gradients(*, epoch: int, step: int, skipped: int, modules: dict[str, nn.Module]) -> Exception:
    """Describe `skipped` steps in a row whose gradients were not finite."""
    names = [
        f"{part}.{name}"
        for part, module in modules.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all()
    ]
    return NonFiniteGradientError(
        f"{skipped} steps in a row were skipped up to epoch {epoch}, step {step}: gradients are not finite for "
        f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}. Lower training.learning_rate or train in float32."
    )


def _bad_tensors(modules: dict[str, nn.Module]) -> Iterator[str]:
    for part, module in modules.items():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                yield f"{part}.{name}"
