"""Batch normalisation over the whole batch of several processes.

The number of processes is not part of a run's settings, so it must not change the result: statistics are always those
of the global batch. On CUDA `SyncBatchNorm` computes them. On the CPU, where it does not work, the two-pass formula
below does, with sums over all processes, forward and backward:

    mean = sum x / n        var = sum (x - mean)^2 / n        y = (x - mean) / sqrt(var + eps) * weight + bias
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional as F

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def synchronise_batch_norm(module: nn.Module, device: torch.device) -> None:
    """Let the batch normalisation inside `module` see all processes' images; the names of weights do not change."""
    if device.type == "cuda":
        convert = nn.SyncBatchNorm.convert_sync_batchnorm
        if "timm" in sys.modules:  # some of its layers normalise and activate
            from timm.layers import convert_sync_batchnorm as convert
        convert(module)
        return
    for name, child in module.named_children():
        if isinstance(child, BatchNorm):
            setattr(module, name, GlobalBatchNorm(child).train(child.training))
        else:
            synchronise_batch_norm(child, device)


class GlobalBatchNorm(nn.Module):
    """Batch normalisation with the parameters and statistics of `layer`, whose sums run over all processes."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, layer: BatchNorm) -> None:
        super().__init__()
        self.eps, self.momentum = layer.eps, layer.momentum
        for name in ("weight", "bias"):
            self.register_parameter(name, getattr(layer, name))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))
        self.after = nn.Sequential(*layer.children())

    def forward(self, maps: Tensor) -> Tensor:
        """Normalise (B, D, ...) as `nn.BatchNorm2d` does, and apply the children of `layer`."""
        if self.training:
            normalised = self._normalised(maps.float()).to(maps.dtype)
        else:
            normalised = F.batch_norm(maps, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        result: Tensor = self.after(normalised)
        return result

    def _normalised(self, values: Tensor) -> Tensor:
        dims = [0, *range(2, values.ndim)]
        shape = (1, -1, *[1] * (values.ndim - 2))
        count = all_reduce(values.new_tensor([values.numel() / values.shape[1]]))
        mean = all_reduce(values.sum(dim=dims)) / count
        centred = values - mean.view(shape)
        variance = all_reduce(centred.square().sum(dim=dims)) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1))
        normalised = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is None or self.bias is None:
            return normalised
        return normalised * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of the batch."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)
