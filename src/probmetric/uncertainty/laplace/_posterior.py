"""A stored last-layer posterior: which layer it belongs to and how to sample it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from probmetric.uncertainty._base import Posterior
from probmetric.uncertainty.laplace._kronecker import KroneckerSampler, augmented_weight
from probmetric.uncertainty.laplace._sampling import DiagonalSampler, Sampler

if TYPE_CHECKING:
    from probmetric.models import Encoder


def linear_head(encoder: Encoder) -> nn.Linear:
    """The encoder's final linear layer, or an error for an encoder without one."""
    head = getattr(encoder, "head", None)
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"{type(encoder).__name__}.head is {type(head).__name__}; "
            "the last-layer Laplace approximation needs a torch.nn.Linear."
        )
    return head


def stored_sampler(head: nn.Linear, posterior: Posterior) -> Sampler:
    """The sampler a posterior's tensors describe, on the head's device; an error if they belong to another layer."""
    weight = augmented_weight(head) if "input_basis" in posterior else head.weight
    curvature = posterior["weight_curvature"]
    if curvature.shape != weight.shape or (head.bias is None and "bias_curvature" in posterior):
        raise ValueError(
            f"the posterior's curvature has shape {tuple(curvature.shape)}, the encoder's last layer "
            f"{tuple(weight.shape)}; fit a posterior for this encoder."
        )
    stored = {name: tensor.to(weight) for name, tensor in posterior.items() if tensor.is_floating_point()}
    precision = float(posterior["prior_precision"])
    if "input_basis" in stored:
        bases = stored["output_basis"], stored["input_basis"]
        return KroneckerSampler(stored["weight_curvature"], *bases, precision, head.bias is not None)
    return DiagonalSampler(stored["weight_curvature"], stored.get("bias_curvature"), precision)
