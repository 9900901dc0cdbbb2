"""A network of one's own as an encoder."""

from __future__ import annotations

from torch import Tensor, nn

from probmetric.models._base import Encoder


class WrappedNetwork(Encoder):
    """A module (B, ...) -> (B, D) as an encoder; its parameters count as pretrained where a head is added.

    Without an added head the last `nn.Linear` of an `nn.Sequential` is the head; other networks show none.
    """

    def __init__(self, network: nn.Module, width: int, dim: int | None = None) -> None:
        """Wrap `network`, which gives D = `width` numbers; `dim` is M of the head to add, None adds none."""
        super().__init__()
        last = network[-1] if isinstance(network, nn.Sequential) and len(network) > 1 else None
        if dim is not None:
            self.network = network
            self._attach_head(width, dim)
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
    """The head of an encoder, which it shares; the input are the encoder's features (B, D)."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.head, self.dim, self.num_features = encoder.head, encoder.dim, encoder.num_features
        loaded = {id(parameter) for parameter in encoder.pretrained_parameters()}
        self._loaded_names = frozenset(name for name, each in self.named_parameters() if id(each) in loaded)

    def features(self, images: Tensor) -> Tensor:
        """Return the features (B, D) as they are."""
        return images


def wrapped(network: nn.Module, width: int, dim: int | None = None) -> Encoder:
    """Return an encoder of `network`, see `WrappedNetwork`; one that is an encoder already stays as it is."""
    return network if isinstance(network, Encoder) else WrappedNetwork(network, width, dim)
