"""Use your own network as an encoder."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from probmetric.models._base import Encoder


class WrappedNetwork(Encoder):
    """A module (B, ...) -> (B, D) as an encoder; if a head is added, the module's parameters count as pretrained.

    Without an added head, the last `nn.Linear` of an `nn.Sequential` is the head; other networks have none.
    """

    def __init__(self, network: nn.Module, width: int, dim: int | Literal["features"] | None = None) -> None:
        """Wrap `network`, which returns D = `width` numbers per image; `dim` is M of a head to add, None adds none."""
        super().__init__()
        last = network[-1] if isinstance(network, nn.Sequential) and len(network) > 1 else None
        if dim is not None:
            self.network = network
            self._attach_head(width, width if dim == "features" else dim)
            self._loaded_names = frozenset(f"network.{name}" for name, _ in network.named_parameters())
        elif isinstance(network, nn.Sequential) and isinstance(last, nn.Linear):
            self.network, self.head = network[:-1], last
            self.num_features, self.dim = last.in_features, last.out_features
        else:
            self.network, self.num_features, self.dim = network, width, width

    def features(self, images: Tensor) -> Tensor:
        """Return the network's output, (B, ...) -> (B, D)."""
        features: Tensor = self.network(images)
        return features


class HeadOnly(Encoder):
    """The head of an encoder as an encoder of its own; it reads features (B, D) and shares the head's weights."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.head, self.dim, self.num_features = encoder.head, encoder.dim, encoder.num_features
        loaded = {id(parameter) for parameter in encoder.pretrained_parameters()}
        self._loaded_names = frozenset(name for name, each in self.named_parameters() if id(each) in loaded)

    def features(self, images: Tensor) -> Tensor:
        """Return the features (B, D) as they are."""
        return images


def input_of(encoder: Encoder, part: str, images: Tensor) -> tuple[Tensor, list[str]]:
    """Return the input of the first part called `part`, and the outermost modules that have finished before it.

    Args:
        encoder: the encoder.
        part: the end of a module's name, such as `blocks.5`.
        images: (B, C, H, W).
    """
    inputs: list[Tensor] = []
    done: list[str] = []

    def ends(name: str) -> None:
        if not inputs:
            done[:] = [*(each for each in done if not each.startswith(f"{name}.")), name]

    first = next(name for name, _ in encoder.named_modules() if f".{name}".endswith(f".{part}"))
    hooks = [encoder.get_submodule(first).register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))]
    for name, module in encoder.named_modules():
        hooks.append(module.register_forward_hook(lambda *_, name=name: ends(name)))
    try:
        encoder.features(images)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs[0], done


def rest_of(encoder: Encoder, part: str, shape: tuple[int, int]) -> Encoder | None:
    """Return the encoder from `part` on. It reads that part's input and shares all weights.

    Args:
        encoder: the encoder, in evaluation mode.
        part: the end of a module's name, such as `blocks.5`.
        shape: channels and side of an image.

    Returns:
        None if the modules before `part` are no chain, or drop at random.
    """
    channels, side = shape
    weight = next(encoder.parameters())
    images = torch.linspace(-1, 1, 2 * channels * side * side).sin().reshape(2, channels, side, side).to(weight)
    activations, done = input_of(encoder, part, images)
    shared = {id(tensor): tensor for tensor in (*encoder.parameters(), *encoder.buffers())}
    rest = copy.deepcopy(encoder, shared)
    for name in done:
        if any(drops(module) for module in rest.get_submodule(name).modules()):
            return None
        parent, _, last = name.rpartition(".")
        setattr(rest.get_submodule(parent), last, nn.Identity())
    rest.hold_still()
    try:
        close = torch.allclose(rest.features(activations), encoder.features(images), rtol=1e-4, atol=1e-5)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # the network was not made to be cut
        return None
    return rest if close else None


def drops(module: nn.Module) -> bool:
    """Return whether the module drops units or paths at random in training mode."""
    rate = getattr(module, "drop_prob", getattr(module, "p", 0.0)) if "Drop" in type(module).__name__ else 0.0
    return bool(rate)


def wrapped(network: nn.Module, width: int, dim: int | Literal["features"] | None = None) -> Encoder:
    """Return `network` as an encoder, see `WrappedNetwork`; an encoder is returned as it is."""
    return network if isinstance(network, Encoder) else WrappedNetwork(network, width, dim)
