"""Plan the methods of `probmetric init` for the user's own data, the cheapest first, and estimate the time of each.

photographs   frozen features; whitening, LDA and an ArcFace head on them; the network's last stages fine-tuned with
              ArcFace; the whole network with ArcFace (and ProxyAnchor: `--full`); on request from scratch
vectors       unchanged; whitening, LDA and an ArcFace head; the head with Laplace and PFE
"""

from __future__ import annotations

import functools
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from probmetric.config import ConfigError, Training, fine_tuning

if TYPE_CHECKING:
    import torch

    from probmetric.models import Encoder

Extent = Literal["quick", "usual", "full"]
NETWORK = "tf_efficientnet_lite0.in1k"
PIXELS = 128
FROZEN = "frozen"
TIMED = 16  # images of the batch that is timed
MOST_KEPT = 4e9  # bytes of the first stages' outputs for all images: on disk, and in memory during training

Settings = dict[str, Any]
_NO_TRAINING = {"epochs": 0}
_WHOLE = ("arcface", "ArcFace"), ("proxy_anchor", "ProxyAnchor")  # it can collapse with many small classes
_LAST_STAGES = {"augment": "none", "epochs": 6}
_START = {"head_init": "lda", "proxy_init": "class_means", "augment": "none", "optimizer": "adamw"}
_HEAD = _START | {"learning_rate": 3e-4, "epochs": 5}


@dataclass(frozen=True)
class Row:
    """A method that `init` plans.

    Attributes:
        settings: the method, as in an experiment's file.
        seeds: how often it is trained.
        what: description for the user.
        cost: which measured cost its time depends on.
    """

    settings: Settings
    seeds: int
    what: str
    cost: Literal["features", "head", "last stages", "fine-tuned", "scratch"] = "head"


def of_photos(
    tag: str, last: LastStages | None, *, images: int, training: int, extent: Extent, scratch: bool
) -> dict[str, Row]:
    """Return method -> row for photographs.

    Args:
        tag: name of the network in timm.
        last: its last stages; None if they cannot train alone.
        images: number of images.
        training: number of training images.
        extent: how many methods and seeds are planned.
        scratch: whether a small net is trained from scratch, too.
    """
    seen = {"pretrained": True, "view": {"size": PIXELS}}
    network = {"backbone": {"name": "timm", "tag": tag}, "dim": "features", **seen}
    headless = {"backbone": {"name": "timm", "tag": tag, "head": "none"}, **seen}
    rows = _on_features(headless, network, {"freeze": "trunk"}, extent)
    seeds, whole = 3 if extent == "full" else 1, fine_tuning(training)
    if last is not None and images * last.size <= MOST_KEPT:
        late = {"loss": "arcface", **network, "training": whole | _LAST_STAGES | {"train_from": last.part}}
        settings = {"label": "ArcFace, last stages fine-tuned", **late}
        rows["late_arcface"] = Row(settings, seeds, "fine-tunes the last stages of the network", "last stages")
    tuned = network | {"training": whole | ({"epochs": 20} if extent == "full" else {})}
    for loss, name in {"quick": (), "usual": _WHOLE[:1], "full": _WHOLE}[extent]:
        settings = {"label": f"{name}, fine-tuned", "loss": loss, **tuned}
        rows[f"tuned_{loss}"] = Row(settings, seeds, "fine-tunes the whole network", "fine-tuned")
    if scratch:
        small = {"label": "ArcFace, small net from scratch", "loss": "arcface", "backbone": "compact"}
        rows["scratch_arcface"] = Row(small | {"view": seen["view"]}, 1, "trains a small net from scratch", "scratch")
    return rows


def of_vectors(*, extent: Extent) -> dict[str, Row]:
    """Return method -> row for vectors, whose model is not available."""
    headless, network = {"backbone": {"name": "vectors", "head": "none"}}, {"backbone": "vectors", "dim": "features"}
    rows = _on_features(headless, network, {}, extent)
    for uncertainty, name in (("laplace", "Laplace"), ("pfe", "PFE")) if extent != "quick" else ():
        head = {"label": f"ArcFace head + {name}", "base": "head_arcface", "uncertainty": uncertainty}
        rows[f"head_{uncertainty}"] = Row(head, rows["head_arcface"].seeds, f"the ArcFace head's doubt by {name}")
    return rows


def _on_features(headless: Settings, network: Settings, frozen: Settings, extent: Extent) -> dict[str, Row]:
    head = network | {"loss": "arcface", "training": _HEAD | frozen}
    whitening, lda = (network | {"training": _NO_TRAINING | {"head_init": kind}} for kind in ("whitening", "lda"))
    return {
        FROZEN: Row(
            {"label": "Frozen features", **headless, "training": _NO_TRAINING}, 1, "nothing is trained", "features"
        ),
        "whitening": Row({"label": "Whitened features", **whitening}, 1, "a linear map, no labels"),
        "lda": Row({"label": "LDA of the features", **lda}, 1, "a linear map by the training classes"),
        "head_arcface": Row(
            {"label": "ArcFace head", **head}, 1 if extent == "quick" else 3, "trains a linear head that starts as LDA"
        ),
    }


def named(rows: Mapping[str, Row], dataset: str) -> dict[str, Row]:
    """Return the rows under names such as `shop-lda`, since methods of all experiments share one set of names."""
    renamed = {}
    for method, row in rows.items():
        base = {"base": f"{dataset}-{row.settings['base']}"} if "base" in row.settings else {}
        renamed[f"{dataset}-{method}"] = replace(row, settings=row.settings | base)
    return renamed


class LastStages(NamedTuple):
    """The stages of a network that work at its two lowest resolutions.

    Attributes:
        part: name of the first of these stages.
        step: seconds per image of a training step of these stages on one core.
        size: bytes of their input for one image.
    """

    part: str
    step: float
    size: float


@dataclass(frozen=True)
class Measured:
    """Times of a network, measured on one core of this machine.

    Attributes:
        forward: seconds per image for features.
        step: seconds per image of a training step of the whole network.
        last: its last stages; None if they cannot train alone.
    """

    forward: float
    step: float
    last: LastStages | None = None

    def seconds(self, row: Row, *, images: int, training: int) -> float:
        """Return the seconds of a row on one core: training, embedding and evaluation of all its seeds."""
        settings = row.settings.get("training") or {}
        seen = settings.get("epochs", 15) * max(settings.get("steps_per_epoch", 0) * Training().batch_size, training)
        each = {
            "features": images * self.forward,
            "head": 3.0,
            "last stages": seen * (self.last.step if self.last else 0.0) + images * self.forward,
            "fine-tuned": seen * self.step + images * self.forward,
            "scratch": seen * self.forward,
        }[row.cost]
        return row.seeds * (each + evaluation(images - training))


NO_NETWORK = Measured(0.0, 0.0)
DECODED = 200  # images that a core prepares in a second


def evaluation(images: int) -> float:
    """Return the seconds on one core to load, embed and evaluate this number of images."""
    return 15.0 + 4.0 * (images / 1000) ** 1.5


@functools.cache
def measured(tag: str) -> Measured:
    """Time one batch of a network with its published weights.

    Raises:
        ConfigError: the weights cannot be found or downloaded.
    """
    import torch

    from probmetric.models import create_encoder
    from probmetric.models._weights import missing_weights, unknown_tag

    if why := unknown_tag(tag):
        raise ConfigError(f"{why}.")
    if why := missing_weights(tag):
        raise ConfigError(f"{why}. Without weights only a small net from scratch is left: --scratch --quick.")
    encoder = create_encoder("timm", dim="features", image_size=PIXELS, pretrained=True, tag=tag)
    encoder = encoder.eval().to(memory_format=torch.channels_last)
    images = torch.zeros(TIMED, 3, PIXELS, PIXELS).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        forward = _timed(functools.partial(encoder, images))
    step = _timed(functools.partial(_step, encoder, images))
    return Measured(forward / TIMED, step / TIMED, last_stages(encoder, images))


def last_stages(encoder: Encoder, images: torch.Tensor) -> LastStages | None:
    """Return the last stages of a timm network in evaluation mode, timed on `images` (B, C, H, W).

    None if the network does not declare its stages, or the modules before them form no chain.
    """
    import torch

    from probmetric.models._wrapped import input_of, rest_of

    stages = list(getattr(encoder.layered, "feature_info", ()))[-2:]
    part = str(stages[0]["module"]) if len(stages) == 2 else ""
    rest = rest_of(encoder, part, (images.shape[1], images.shape[2])) if part else None
    if rest is None:
        return None
    with torch.no_grad():
        reaching = input_of(encoder, part, images)[0]
    seconds = _timed(functools.partial(_step, rest, reaching)) / len(images)
    return LastStages(part, seconds, reaching[0].numel() * reaching.element_size())


def _step(encoder: torch.nn.Module, images: torch.Tensor) -> None:
    encoder(images).square().mean().backward()
    encoder.zero_grad()


def _timed(work: Callable[[], Any]) -> float:
    """Return the seconds that `work` takes on one core after a warm-up."""
    import torch

    timer = timeit.Timer(work)  # torch.utils.benchmark warns about CUDA on machines without a GPU
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timer.timeit(2)
        return timer.timeit(1)
    finally:
        torch.set_num_threads(threads)
