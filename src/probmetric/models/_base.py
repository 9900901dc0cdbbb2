"""Base class of the encoders: features, a linear head, and how training freezes and groups their parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from probmetric.errors import nearest
from probmetric.io import FileError, check_readable, read_tensors, sha256_file
from probmetric.registry import Flag, OptionValueError, UnknownNameError

NESTED = ("state_dict", "model", "model_state_dict", "teacher")  # under which training scripts store weights
LARGEST_HEAD = 1 << 28  # weights of the linear layer: 1 GB, and three more of gradients and moments
WRAPPERS = ("module.", "_orig_mod.", "model.")


class Encoder(nn.Module):
    """Images -> raw embeddings: `encoder(x) == encoder.head(encoder.features(x))`.

    A subclass defines `features` and sets `head`, the final `nn.Linear(D, M)`. Without a head, `head` is None and the
    features are the embedding.

    Attributes:
        has_head: whether there is a `head`; a mapping if that depends on options (`{"head": "linear"}`).
        wants_statistics_of: the view's `normalisation` that the encoder converts from; "": it converts nothing.
        dim: M, size of the embedding.
        num_features: D, size of the features.
        pretrained_digest: SHA-256 of the weight file the encoder started from, or None.
    """

    has_head: ClassVar[Flag] = True
    wants_statistics_of: ClassVar[str] = ""
    dim: int
    num_features: int
    head: nn.Linear | None

    def __init__(self) -> None:
        super().__init__()
        self.head = None
        self.pretrained_digest: str | None = None
        self._loaded_names: frozenset[str] = frozenset()
        self._frozen_batch_norm = False
        self._still: tuple[str, ...] = ()

    @classmethod
    def input_statistics(cls, **options: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Return the mean and standard deviation per channel that its images need, or None if any will do."""
        return None

    def _attach_head(self, num_features: int, dim: int) -> nn.Linear:
        """Add `head`, the linear layer (D -> M), and return it; M is D where `dim` is 0."""
        self.num_features, self.dim = num_features, dim or num_features
        if num_features * self.dim > LARGEST_HEAD:
            raise OptionValueError(
                f"the network has {num_features:,} features, and a linear layer from them to {self.dim:,} dimensions "
                f"takes {4e-9 * num_features * self.dim:,.0f} GB; choose a smaller dim, or pool what the network gives."
            )
        self.head = nn.Linear(num_features, self.dim)
        return self.head

    def _width_of(self, part: nn.Module, in_channels: int, image_size: int) -> int:
        """Return the number of channels or features that a new `part` of this encoder gives for images.

        Raises:
            OptionValueError: the part takes no images of this size.
        """
        part.eval()
        try:
            with torch.no_grad():
                return part(torch.zeros(1, in_channels, image_size, image_size)).shape[1]
        except RuntimeError as error:
            raise OptionValueError(
                f"backbone {type(self).__name__} takes no images of {image_size} x {image_size} pixels ({error}); "
                "choose another view.size, or another backbone."
            ) from error
        finally:
            part.train()

    def features(self, images: Tensor) -> Tensor:
        """Return features before the head, (B, C, H, W) -> (B, D)."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Return raw embeddings, (B, C, H, W) -> (B, M)."""
        features = self.features(images)
        return features if self.head is None else self.head(features)

    def train(self, mode: bool = True) -> Encoder:
        """Set training mode; frozen parts and frozen batch normalisation stay in evaluation mode."""
        super().train(mode)
        if mode and self._frozen_batch_norm:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                    module.eval()
        for name in self._still:
            self.get_submodule(name).eval()
        return self

    def hold_still(self) -> None:
        """Keep every part in evaluation mode whose parameters all have `requires_grad` false now."""
        wanting = {
            name: [parameter.requires_grad for parameter in part.parameters()] for name, part in self.named_modules()
        }
        self._still = tuple(name for name, wants in wanting.items() if name and wants and not any(wants))
        self.train(self.training)

    def freeze_trunk(self, before: str | None = None) -> None:
        """Stop training all parameters but the head's, or those that are defined before the part `before`.

        Args:
            before: end of a part's name in `named_modules`, such as `blocks.5`.

        Raises:
            UnknownNameError: the network has no such part.
        """
        names = self.trunk_names(before)
        for name in names.intersection(dict(self.named_parameters())):
            self.get_parameter(name).requires_grad_(False)
        self.hold_still()

    def trunk_names(self, before: str | None = None) -> set[str]:
        """Return the `state_dict` names of all parts but the head, or of the parts defined before `before`.

        Raises:
            UnknownNameError: the network has no such part.
        """
        names = [name for name in self.state_dict() if not name.startswith("head.")]
        if before is None:
            return set(names)
        places = [place for place, name in enumerate(names) if f".{before}." in f".{name}."]
        if not places:
            parts = sorted({".".join(name.split(".")[1:3]) for name in names})
            raise UnknownNameError(f"train_from is {before!r}, which the network lacks; {nearest(before, parts)}")
        return set(names[: places[0]])

    @property
    def layered(self) -> nn.Module:
        """Return the part whose layers `training.layer_decay` counts."""
        return self

    def set_batch_norm(self, policy: Literal["train", "frozen"]) -> None:
        """Set the batch normalisation: `frozen` uses stored statistics without updates; scale and shift still train."""
        self._frozen_batch_norm = policy == "frozen"
        self.train(self.training)

    def optimizer_groups(self) -> list[dict[str, Any]]:
        """Return parameter groups, in the form of `Loss.optimizer_groups`; default: all at the base learning rate."""
        return [{"params": list(self.parameters())}]

    def pretrained_parameters(self) -> Iterator[nn.Parameter]:
        """Return parameters that came from a weight file, or low-rank changes of these; a warm-up freezes them."""
        plain = ((re.sub(r"parametrizations\.(\w+)\..*", r"\1", name), each) for name, each in self.named_parameters())
        return (parameter for name, parameter in plain if name in self._loaded_names)

    def load_pretrained(self, source: str | Path | bool) -> None:
        """Start from a weight file of this backbone, for instance another run's `model.safetensors`.

        The head is loaded only if its shape is the same.

        Raises:
            FileError: `source` is missing, damaged or of another architecture.
        """
        if source is True:
            raise FileError(f"backbone {type(self).__name__} publishes no weights; set `pretrained` to a weight file.")
        state = read_state(source)
        state = {name.removeprefix("encoder."): value for name, value in state.items() if not name.startswith("loss.")}
        expected = self.state_dict()
        for name in ("head.weight", "head.bias"):
            if name in state and name in expected and state[name].shape != expected[name].shape:
                del state[name]
        self._take(self, state, source, may_lack=("head.",))

    def _take(self, module: nn.Module, state: Mapping[str, Tensor], source: Any, may_lack: tuple[str, ...]) -> None:
        """Load `state` into `module` (self or a part of it) and remember which parameters it filled."""
        expected = module.state_dict()
        problems = [f"lacks {name}" for name in expected if name not in state and not name.startswith(may_lack or "\0")]
        problems += [f"has an unknown {name}" for name in state if name not in expected]
        problems += [
            f"has {name} of shape {tuple(value.shape)} instead of {tuple(expected[name].shape)}"
            for name, value in state.items()
            if name in expected and value.shape != expected[name].shape
        ]
        if problems:
            more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
            raise FileError(
                f"{source} does not fit backbone {type(self).__name__}: it {'; '.join(problems[:3])}{more}. "
                "Use weights of the same backbone with the same options."
            )
        module.load_state_dict(state, strict=False)
        filled = {id(parameter) for name, parameter in module.named_parameters() if name in state}
        self._loaded_names = frozenset(name for name, p in self.named_parameters() if id(p) in filled)
        self.pretrained_digest = sha256_file(source) if Path(str(source)).is_file() else None


def read_state(path: str | Path | bool) -> dict[str, Tensor]:
    """Read a state dict from .safetensors, or from a .pth/.pt/.bin file without running any code in it.

    Raises:
        FileError: missing, damaged, or holding something else than tensors.
    """
    path = Path(str(path))
    if path.suffix == ".safetensors":
        return _bare(read_tensors(path, "torch", "get it again, or name another file in `pretrained`")[0])
    check_readable(path)
    if not path.exists():
        raise FileError(f"weight file {path} is missing; correct `pretrained` or put the file there.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FileError(
            f"weight file {path} cannot be read as plain tensors ({type(error).__name__}); "
            "download it again, or convert it to safetensors."
        ) from error
    while isinstance(state, dict) and (inner := next((state[key] for key in NESTED if key in state), None)):
        if not isinstance(inner, dict):
            break
        state = inner
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise FileError(f"weight file {path} holds no state dict (name -> tensor); save `model.state_dict()`.")
    return _bare(state)


def _bare(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without a prefix that a wrapper put before all names, such as `module.`."""
    prefix = next((each for each in WRAPPERS if all(name.startswith(each) for name in state)), "")
    return _bare({name.removeprefix(prefix): value for name, value in state.items()}) if prefix and state else state
