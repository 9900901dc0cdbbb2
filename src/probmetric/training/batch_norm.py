"""Batch normalisation over the whole batch of several processes.

The number of processes is not part of a run's settings, so it must not change what is computed: statistics are always
those of the global batch. CUDA has kernels for that (`SyncBatchNorm`); the CPU gets the two-pass formula below, in
which sums run over the processes, forward and backward:

    mean = sum x / n        var = sum (x - mean)^2 / n        y = (x - mean) / sqrt(var + eps) * weight + bias
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronise_batch_norm(module: nn.Module, device: torch.device) -> None:
    """Let the batch normalisation inside `module` see all processes' images; names of weights stay as they are."""
    for name, child in module.named_children():
        if not isinstance(child, _BatchNorm):
            synchronise_batch_norm(child, device)
        else:
            setattr(module, name, _on_cuda(child) if device.type == "cuda" else _like(child))


def _on_cuda(layer: _BatchNorm) -> nn.Module:
    """PyTorch's synchronised layer, or timm's where normalisation and activation are one layer."""
    if type(layer) in _PLAIN:
        return nn.SyncBatchNorm.convert_sync_batchnorm(layer)
    if "timm" in sys.modules:
        from timm.layers import convert_sync_batchnorm

        converted: nn.Module = convert_sync_batchnorm(layer)
        return converted
    return layer


class GlobalBatchNorm(_BatchNorm):
    """Batch normalisation whose sums run over all processes, for the CPU; `after` is what the layer did next."""

    after: nn.Module | None = None

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions from two on."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, D, ...) -> (B, D, ...), as `nn.BatchNorm2d`."""
        values = self._normalised(input.float()).to(input.dtype) if self.training else super().forward(input)
        return values if self.after is None else self.after(values)

    def _normalised(self, values: Tensor) -> Tensor:
        dims = [0, *range(2, values.ndim)]
        shape = (1, -1, *[1] * (values.ndim - 2))
        count = values.new_tensor([values.numel() / values.shape[1]])
        dist.all_reduce(count)
        mean = _Sum.apply(values.sum(dim=dims)) / count
        centred = values - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(dim=dims)) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1))
        normalised = centred * (variance + self.eps).rsqrt().view(shape)
        return normalised * self.weight.view(shape) + self.bias.view(shape) if self.affine else normalised

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of the batch."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


class _Sum(torch.autograd.Function):
    """Sum over the processes; so is its gradient, since every process's output depends on it."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def _like(layer: _BatchNorm) -> GlobalBatchNorm:
    """A global layer with the parameters and statistics of `layer`, and what it does after normalising."""
    result = GlobalBatchNorm(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    result._parameters, result._buffers = layer._parameters, layer._buffers
    if type(layer) not in _PLAIN:
        result.after = nn.Sequential(*layer.children())
    return result.train(layer.training)
