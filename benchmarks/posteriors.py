"""Cost of the Laplace approximation beside the published construction and beside deterministic training and embedding.

    python benchmarks/posteriors.py [--only curvature online embedding] [--threads 1 --cpu-time] [--json results.json]

curvature   diagonal Gauss-Newton matrix of a linear layer under the contrastive loss: the closed form against the
            published construction, which carries one Z x Z Hessian block per pair and image through the Jacobian of the
            normalisation and expands (pairs, Z, D) diagonals. Pair throughput, peak memory, agreement, and the matrix
            product of the distinct pairs' rows, in float32, that a direct sum over pairs costs. Target: 1,000 times the
            pair throughput at 2048 -> 2048, and 5,000 pairs in under 100 ms on 2 cores.
online      one training step with online LAM against the same step without. Target: at most 1.3 times.
embedding   a pass with 100 weight draws against a deterministic pass through a ResNet-50 with a 2048 -> 2048 head, and
            against laplace-torch's draws from the same posterior, where it is installed (`pip install -e .[peers]`).
            Target: at most twice the deterministic pass.

All contenders run in one process, in turn, so that whatever else loads the machine loads them alike; the fastest of the
repeats counts. On a busy machine use one thread and processor time (--threads 1 --cpu-time): waiting is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _machine import hardware
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from probmetric.losses import Loss, create_loss
from probmetric.models import Encoder, create_encoder
from probmetric.uncertainty import create_uncertainty, laplace
from probmetric.uncertainty.laplace_online import OnlineLaplace


def per_pair_construction(features: Tensor, weight: Tensor, pairs: Tensor, target: Tensor) -> Tensor:
    """Full Euclidean diagonal (Z, D) the published way: dense output Hessians, one per pair and block.

    features (N, D), weight (Z, D), pairs (P, 2), target (P,). The output Hessian of a pair is y[[I, -I], [-I, I]]; each
    block is multiplied by the Jacobians of u = z/|z| on both sides, and its diagonal spread over the inputs.
    """
    inputs = features[pairs]  # (P, 2, D)
    outputs = F.linear(inputs, weight)
    norm = outputs.norm(dim=-1, keepdim=True)
    units = outputs / norm
    identity = torch.eye(weight.shape[0], device=weight.device)
    jacobian = (identity - units[..., :, None] * units[..., None, :]) / norm[..., None]  # (P, 2, Z, Z)
    total = torch.zeros_like(weight)
    for one, other, sign in ((0, 0, 1.0), (0, 1, -1.0), (1, 0, -1.0), (1, 1, 1.0)):
        block = (sign * target)[:, None, None] * identity
        block = jacobian[:, one].transpose(1, 2) @ block @ jacobian[:, other]  # (P, Z, Z)
        diagonal = block.diagonal(dim1=1, dim2=2)
        total += (diagonal[:, :, None] * (inputs[:, one] * inputs[:, other])[:, None, :]).sum(0)
    return total


class Memory:
    """Peak memory of a block above its start, in MB: the allocator on CUDA, the sampled resident set on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.peak = device, 0.0

    def __enter__(self) -> Memory:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._start = torch.cuda.memory_allocated(self.device)
        else:
            self._start, self._stop = resident(), threading.Event()
            self._highest = self._start
            self._thread = threading.Thread(target=self._watch)
            self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.001):
            self._highest = max(self._highest, resident())

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.peak = (torch.cuda.max_memory_allocated(self.device) - self._start) / 2**20
        else:
            self._stop.set()
            self._thread.join()
            self.peak = (self._highest - self._start) / 2**20


def resident() -> int:
    """Resident memory of this process in bytes (Linux; 0 elsewhere)."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    return 0


Clock = Callable[[], float]


def fastest(contenders: Sequence[Callable[[], object]], device: torch.device, rounds: int, clock: Clock) -> list[float]:
    """Least time of each contender over `rounds` rounds, in each of which every one runs once, after a warm-up."""
    best = [float("inf")] * len(contenders)
    for attempt in range(rounds + 1):
        for place, contender in enumerate(contenders):
            start = clock()
            contender()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if attempt:
                best[place] = min(best[place], clock() - start)
    return best


def random_pairs(images: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`count` pairs (P, 2) among `images`, half of them attracting."""
    pairs = torch.randint(0, images, (count, 2), generator=torch.Generator().manual_seed(count))
    target = torch.where(torch.arange(count) % 2 == 0, 1.0, -1.0)
    return pairs.to(device), target.to(device)


def curvature(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Closed form against the published construction for several layer shapes."""
    return [_published(arguments, device, *shape) for shape in arguments.layers] + [
        _closed(arguments, device, images, geometry, approximation)
        for images in arguments.images
        for geometry, approximation in (("arccos", "fixed"), ("euclidean", "full"), ("arccos", "full"))
    ]


def _layer(images: int, inputs: int, outputs: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Features (N, D) and weight (Z, D)."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(images, inputs, generator=generator).to(device)
    return features, (torch.randn(outputs, inputs, generator=generator) / inputs**0.5).to(device)


def closed_form(features: Tensor, weight: Tensor, pairs: Tensor, target: Tensor, **options: Any) -> Tensor:
    """The package's diagonal (Z, D) of pairs (P, 2) with targets (P,), repeated pairs adding up."""
    targets = features.new_zeros(len(features), len(features))
    targets.index_put_((pairs[:, 0], pairs[:, 1]), target.to(features), accumulate=True)
    return laplace.diag_ggn(features, features @ weight.T, targets, **options)


def _published(arguments: argparse.Namespace, device: torch.device, inputs: int, outputs: int) -> dict[str, Any]:
    """Throughput of the published construction on few pairs, and of the closed form on 5,000 of 32 images."""
    features, weight = _layer(32, inputs, outputs, device)
    few, many = (random_pairs(32, count, device) for count in (arguments.pairs, 5000))
    with Memory(device) as closed_memory:
        closed_form(features, weight, *many, approximation="full")
    with Memory(device) as published_memory:
        start = arguments.clock()
        expected = per_pair_construction(features, weight, *few)
        published = arguments.clock() - start
    closed = closed_form(features, weight, *few, approximation="full")
    few_s, many_s = fastest(
        [functools.partial(closed_form, features, weight, *p, approximation="full") for p in (few, many)],
        device,
        arguments.rounds,
        arguments.clock,
    )
    return {
        "layer": f"{inputs}->{outputs}",
        "published_pairs": arguments.pairs,
        "published_s": published,
        "published_peak_mb": published_memory.peak,
        "closed_same_pairs_ms": 1e3 * few_s,
        "closed_5000_pairs_ms": 1e3 * many_s,
        "closed_5000_peak_mb": closed_memory.peak,
        "speedup_same_pairs": published / few_s,
        "pair_throughput_ratio": (5000 / many_s) / (arguments.pairs / published),
        "relative_difference": float((closed - expected).abs().max() / expected.abs().max()),
    }


def _closed(
    arguments: argparse.Namespace, device: torch.device, images: int, geometry: str, approximation: str
) -> dict[str, Any]:
    """5,000 pairs of several numbers of images at 2048 -> 2048, beside the product of the distinct pairs' rows."""
    features, weight = _layer(images, 2048, 2048, device)
    pairs, target = random_pairs(images, 5000, device)
    distinct = len(torch.unique(pairs.sort(dim=1).values, dim=0))
    left, right = torch.randn(2048, distinct, device=device), torch.randn(distinct, 2048, device=device)
    options: dict[str, Any] = {"geometry": geometry, "approximation": approximation}
    closed, product = fastest(
        [lambda: closed_form(features, weight, pairs, target, **options), lambda: left @ right],
        device,
        arguments.rounds,
        arguments.clock,
    )
    exact = closed_form(features.double(), weight.double(), pairs, target, **options)
    single = closed_form(features, weight, pairs, target, **options)
    return {
        "images": images,
        "distinct_pairs": distinct,
        "variant": f"{geometry} {approximation}",
        "closed_5000_pairs_ms": 1e3 * closed,
        "product_of_pairs_ms": 1e3 * product,
        "difference_to_float64": float((single - exact).abs().max() / exact.abs().max()),
    }


def training_step(encoder: Encoder, loss: Loss, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """One optimiser step, through `from_features` where the loss is an objective."""
    optimizer = torch.optim.RMSprop(encoder.parameters(), lr=1e-5)
    generator = torch.Generator(images.device).manual_seed(0)
    head = encoder.head
    assert head is not None  # a linear layer in every network of this benchmark

    def step() -> None:
        features = encoder.features(images)
        if getattr(loss, "wants_features", False):
            value = loss.from_features(features, head, labels, generator=generator)
        else:
            value = loss(head(features), labels, generator=generator)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def online(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Online LAM against deterministic training, steps taken in turn."""
    rows = []
    for backbone, size, channels, dim, batch in (
        ("lam_fashion", 28, 1, 3, 64),
        ("lam_cifar", 32, 3, 16, 256),
        ("compact", 32, 1, 64, 96),
        ("timm", 64, 3, 512, 32),
    ):
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(batch, channels, size, size, generator=generator).to(device)
        labels = (torch.arange(batch) % 10).to(device)
        torch.manual_seed(0)
        options = {"tag": "resnet50.tv_in1k"} if backbone == "timm" else {}
        encoder = create_encoder(backbone, dim=dim, in_channels=channels, image_size=size, **options).to(device).train()
        plain = create_loss("contrastive", num_classes=10, dim=dim).to(device)
        objective = OnlineLaplace().objective(encoder, plain, num_images=60000).to(device)
        steps = [training_step(encoder, loss, images, labels) for loss in (plain, objective.train())]
        deterministic, with_laplace = fastest(steps, device, arguments.rounds, arguments.clock)
        rows.append(
            {
                "backbone": backbone,
                "batch": batch,
                "deterministic_ms": 1e3 * deterministic,
                "online_ms": 1e3 * with_laplace,
                "ratio": with_laplace / deterministic,
            }
        )
    return rows


def embedding(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """A pass with 100 draws against a deterministic pass, ResNet-50 with a 2048 -> 2048 head."""
    torch.manual_seed(0)
    encoder = create_encoder("timm", dim=2048, in_channels=3, image_size=224, tag="resnet50.tv_in1k")
    encoder = encoder.to(device).eval()
    uncertainty = create_uncertainty("laplace", samples=100)
    posterior = {
        "weight_curvature": torch.rand(2048, 2049, generator=torch.Generator().manual_seed(0)) * 1e4,
        "prior_precision": torch.tensor(1.0),
    }
    batches = [torch.rand(32, 3, 224, 224) for _ in range(arguments.embed_images // 32)]

    def deterministic() -> None:
        with torch.no_grad():
            torch.cat([F.normalize(encoder(batch.to(device)), dim=1) for batch in batches])

    def sampled() -> None:
        uncertainty.bind(encoder, posterior=posterior, seed=0)(batches)

    peer = laplace_torch(encoder, posterior, batches, device)
    contenders = [deterministic, sampled, *([peer] if peer else [])]
    plain, drawn, *others = fastest(contenders, device, arguments.passes, arguments.clock)
    with Memory(device) as memory:
        sampled()
    row = {
        "images": 32 * len(batches),
        "samples": 100,
        "deterministic_s": plain,
        "sampled_s": drawn,
        "ratio": drawn / plain,
        "sampled_peak_mb": memory.peak,
    }
    return [row | {"laplace_torch_s": seconds, "laplace_torch_ratio": seconds / plain} for seconds in others] or [row]


def laplace_torch(
    encoder: nn.Module, posterior: dict[str, Tensor], batches: Sequence[Tensor], device: torch.device
) -> Callable[[], object] | None:
    """A pass of laplace-torch with 100 draws from `posterior`, summed up as means and variances; None if not installed.

    It keeps a batch's features between draws, as we do, and draws the head anew for every batch.
    """
    try:
        from laplace import DiagLLLaplace
        from laplace.curvature import BackPackGGN
    except ImportError:
        return None
    peer = DiagLLLaplace(copy.deepcopy(encoder), "regression", backend=BackPackGGN, last_layer_name="head")
    peer.fit(DataLoader(TensorDataset(batches[0].to(device), torch.zeros(len(batches[0]), 2048)), batch_size=32))
    weights, biases = posterior["weight_curvature"].split([2048, 1], dim=1)
    peer.H = torch.cat([weights.flatten(), biases.flatten()]).to(device)
    peer.prior_precision = float(posterior["prior_precision"])
    deviation = peer.posterior_scale[: 2048 * 2048].cpu()
    expected = (weights.flatten() + posterior["prior_precision"]).rsqrt()
    torch.testing.assert_close(deviation, expected)

    def drawn() -> None:
        for batch in batches:
            with torch.no_grad():
                samples = F.normalize(peer.predictive_samples(batch.to(device), pred_type="nn", n_samples=100), dim=-1)
                samples.mean(0), samples.var(0)

    return drawn


def layer(text: str) -> tuple[int, int]:
    """`2048x512` as (inputs, outputs)."""
    inputs, outputs = text.split("x")
    return int(inputs), int(outputs)


PARTS = {"curvature": curvature, "online": online, "embedding": embedding}


def main() -> None:
    """Run the chosen parts, print their tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--layers", nargs="+", type=layer, default=[(9216, 128), (2048, 512), (2048, 2048)])
    parser.add_argument("--pairs", type=int, default=8, help="pairs given to the published construction")
    parser.add_argument("--images", nargs="+", type=int, default=[32, 64, 128], help="images the pairs are drawn from")
    parser.add_argument("--rounds", type=int, default=9, help="repeats of every contender")
    parser.add_argument("--passes", type=int, default=2, help="repeats of the embedding pass")
    parser.add_argument("--embed-images", type=int, default=128)
    parser.add_argument("--cpu-time", action="store_true", help="processor time instead of wall time")
    parser.add_argument("--json", type=Path, default=None, help="write all numbers here")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    arguments.clock = time.process_time if arguments.cpu_time else time.perf_counter
    results: dict[str, Any] = {
        "hardware": hardware("torch", device=device),
        "bfloat16_in_hardware": bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)()),
        "clock": "processor time" if arguments.cpu_time else "wall time",
    }
    for name in arguments.only:
        results[name] = PARTS[name](arguments, device)
        print(name)
        for row in results[name]:
            print(
                "  "
                + "  ".join(
                    f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()
                )
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
