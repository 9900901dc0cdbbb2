"""Cost of every loss beside its peers: forward + backward, milliseconds, peak memory, and two ratios.

    python benchmarks/losses.py [--classes 100 11318] [--only proxy_anchor nir] [--rounds 15] [--device cuda]

Every registered loss, the same-named loss of pytorch-metric-learning (PML) and the three matrix products nobody can do
without are measured in one run, one after the other in every round, so that whatever else loads the machine loads
them alike. The least time over the rounds counts, because other work only adds to it. `x PA` divides it by that of
PML's ProxyAnchor, `x peer` by that of PML's loss of the same mathematics; `% step` relates it to a ResNet-50 training
step at this batch size, measured at `--step-batch` images and scaled. Memory is the growth of the peak over the call's
start.

With `--cpu-time` (CPU only) one thread is timed by the processor time it uses: the ratios then hold on a machine that
is busy with other work.

On CPU, glibc returns large blocks to the system at every free, which costs page faults; set MALLOC_TRIM_THRESHOLD_ and
MALLOC_MMAP_THRESHOLD_ to 4294967295 to measure without (memory is then not meaningful).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from _machine import hardware
from torch import Tensor, nn
from tqdm import tqdm

from probmetric.losses import create_loss, list_losses

REFERENCE = "PML ProxyAnchor"
FLOOR = "three matrix products"
SLOW_SECONDS = 2.0
SLOW_ROUNDS = 3
Step = Callable[[Tensor, Tensor], Tensor]
Clock = Callable[[], float]


@dataclass
class Contender:
    """One row of the table; `peer` names the row of the same mathematics, `times` are seconds by round."""

    name: str
    step: Step
    peer: str | None = None
    times: dict[int, float] = field(default_factory=dict)
    peak_megabytes: float | None = None

    def is_due(self) -> bool:
        """Whether another round is worth its time."""
        times = list(self.times.values())
        return len(times) < SLOW_ROUNDS or statistics.median(times) < SLOW_SECONDS

    def milliseconds(self) -> float:
        """Least over the rounds."""
        return 1e3 * min(self.times.values())

    def ratio(self, other: Contender | None) -> float | None:
        """This row's least time over the other's."""
        return None if other is None else min(self.times.values()) / min(other.times.values())


def options_of(name: str, classes: int) -> dict[str, int]:
    """Options of the papers for many classes: two proxies per class on Stanford Online Products."""
    return {"proxies_per_class": 2} if classes > 1000 and "potential" in name else {}


def peers(classes: int, dim: int) -> dict[str, tuple[str, Callable[[], nn.Module]]]:
    """PML's losses by the name of ours with the same mathematics."""
    from pytorch_metric_learning import losses, miners

    def mined() -> nn.Module:
        loss, miner = losses.MultiSimilarityLoss(alpha=2, beta=40), miners.MultiSimilarityMiner(epsilon=0.1)
        forward = loss.forward
        loss.forward = lambda z, y: forward(z, y, miner(z, y))
        return loss

    def triplets() -> nn.Module:
        loss, miner = losses.ContrastiveLoss(neg_margin=0.7), miners.TripletMarginMiner(margin=0.7)
        forward = loss.forward
        loss.forward = lambda z, y: forward(z, y, miner(z, y))
        return loss

    return {
        "proxy_anchor": (REFERENCE, lambda: losses.ProxyAnchorLoss(classes, dim)),
        "proxy_nca_pp": ("PML ProxyNCA", lambda: losses.ProxyNCALoss(classes, dim, softmax_scale=9)),
        "cosine": ("PML NormalizedSoftmax", lambda: losses.NormalizedSoftmaxLoss(classes, dim)),
        "arcface": ("PML ArcFace", lambda: losses.ArcFaceLoss(classes, dim)),
        "soft_triple": ("PML SoftTriple", lambda: losses.SoftTripleLoss(classes, dim)),
        "multi_similarity": ("PML MultiSimilarity", mined),
        "contrastive": ("PML Contrastive", triplets),
    }


def floor(classes: int, dim: int, device: torch.device) -> Step:
    """The products of a proxy loss: similarities, gradient of the embeddings, gradient of the proxies."""
    proxies = torch.randn(classes, dim, device=device)

    def step(z: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            similarity = z @ proxies.T
            return (similarity @ proxies)[0, 0] + (similarity.T @ z)[0, 0]

    return step


def training_step(module: nn.Module) -> Step:
    """Forward and backward, gradients set anew."""

    def step(z: Tensor, y: Tensor) -> Tensor:
        z.grad = None
        module.zero_grad(set_to_none=True)
        value: Tensor = module(z, y)
        value.backward()
        return value

    return step


def contenders(classes: int, dim: int, only: list[str], device: torch.device) -> list[Contender]:
    """Rows in the order they are measured: each peer directly before the loss it is compared with."""
    known = peers(classes, dim)
    rows = [Contender(FLOOR, floor(classes, dim, device))]
    rows.append(Contender(REFERENCE, training_step(known["proxy_anchor"][1]().to(device))))
    for name in only or list_losses():
        peer = None
        if name in known:
            peer, build = known[name]
            if peer != REFERENCE:
                rows.append(Contender(peer, training_step(build().to(device))))
        loss = create_loss(name, num_classes=classes, dim=dim, **options_of(name, classes)).to(device)
        rows.append(Contender(name, training_step(loss), peer))
    return rows


def synchronise(device: torch.device) -> None:
    """Wait for the accelerator."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(step: Step, z: Tensor, y: Tensor, clock: Clock) -> float:
    """Time of one call."""
    synchronise(z.device)
    start = clock()
    step(z, y)
    synchronise(z.device)
    return clock() - start


def status_megabytes(key: str) -> float:
    """A memory figure of this process, from Linux."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def peak_megabytes(step: Step, z: Tensor, y: Tensor) -> float | None:
    """Growth of the peak memory over its value before the call; None where the system does not tell."""
    gc.collect()
    if z.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(z.device)
        allocated = torch.cuda.memory_allocated(z.device)
        step(z, y)
        return (torch.cuda.max_memory_allocated(z.device) - allocated) / 2**20
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = status_megabytes("VmRSS")
        step(z, y)
        return status_megabytes("VmHWM") - before
    except (OSError, AttributeError):
        return None


def measure(rows: list[Contender], z: Tensor, y: Tensor, rounds: int, clock: Clock) -> None:
    """Warm every row up, note its memory, then time all of them in every round."""
    progress = tqdm(total=(rounds + 1) * len(rows), unit="step", mininterval=1.0)
    for row in rows:
        progress.set_description(row.name)
        row.peak_megabytes = peak_megabytes(row.step, z, y)
        progress.update()
    for number in range(rounds):
        progress.set_description(f"round {number + 1}")
        for row in rows:
            if row.is_due():
                row.times[number] = seconds(row.step, z, y, clock)
            progress.update()
    progress.close()


def resnet_step_seconds(batch: int, measured: int, device: torch.device, clock: Clock) -> float:
    """Seconds of a ResNet-50 forward and backward pass at 224 pixels, `measured` images scaled to `batch`."""
    from torchvision.models import resnet50

    net = resnet50(weights=None).to(device=device, memory_format=torch.channels_last)
    images = torch.randn(measured, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
    times = []
    for _ in tqdm(range(3), desc="ResNet-50", unit="step"):
        synchronise(device)
        start = clock()
        net(images).sum().backward()
        synchronise(device)
        times.append(clock() - start)
    return min(times) * batch / measured


def number(value: float | None, width: int, digits: int) -> str:
    """A cell of the table."""
    return " " * (width - 1) + "-" if value is None else f"{value:{width}.{digits}f}"


def table(rows: list[Contender], classes: int, step_seconds: float | None) -> list[dict[str, object]]:
    """Print the rows and return them as records."""
    by_name = {row.name: row for row in rows}
    print(f"\nC = {classes:,}\n{'loss':28}{'ms':>10}{'peak MB':>10}{'x floor':>9}{'x PA':>8}{'x peer':>8}{'% step':>9}")
    records: list[dict[str, object]] = []
    for row in rows:
        milliseconds = row.milliseconds()
        record: dict[str, object] = {
            "loss": row.name,
            "classes": classes,
            "milliseconds": milliseconds,
            "peak_megabytes": row.peak_megabytes,
            "ratio_to_floor": row.ratio(by_name[FLOOR]),
            "ratio_to_pml_proxy_anchor": row.ratio(by_name[REFERENCE]),
            "ratio_to_peer": row.ratio(by_name[row.peer] if row.peer else None),
            "percent_of_resnet50_step": 0.1 * milliseconds / step_seconds if step_seconds else None,
            "rounds": len(row.times),
        }
        records.append(record)
        cells = [number(record[key], width, digits) for key, width, digits in COLUMNS]  # type: ignore[arg-type]
        print(f"{row.name:28}" + "".join(cells))
    return records


COLUMNS = (
    ("milliseconds", 10, 2),
    ("peak_megabytes", 10, 0),
    ("ratio_to_floor", 9, 1),
    ("ratio_to_pml_proxy_anchor", 8, 2),
    ("ratio_to_peer", 8, 2),
    ("percent_of_resnet50_step", 9, 3),
)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 11318], help="numbers of training classes")
    parser.add_argument("--batch", type=int, default=112, help="images per batch")
    parser.add_argument("--dim", type=int, default=512, help="embedding dimension")
    parser.add_argument(
        "--only", nargs="+", default=[], choices=list_losses(), metavar="LOSS", help="only these losses"
    )
    parser.add_argument("--rounds", type=int, default=15, help="rounds; losses above 2 s stop after three")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="torch device")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--cpu-time", action="store_true", help="processor time of one thread")
    parser.add_argument("--step-batch", type=int, default=8, help="images of the ResNet-50 step; 0 leaves it out")
    parser.add_argument("--output", type=Path, default=None, help="JSON file (benchmarks/results/losses-*.json)")
    return parser.parse_args()


def main() -> None:
    """Measure, print and write the results."""
    arguments = parse()
    device = torch.device(arguments.device)
    torch.set_num_threads(1 if arguments.cpu_time else arguments.threads)
    if arguments.cpu_time and device.type != "cpu":
        raise SystemExit(f"--cpu-time times the processor, not {device}; leave it out or add --device cpu")
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    torch.manual_seed(0)
    measured_on = hardware("torch", device=device)
    step_seconds = None
    if arguments.step_batch:
        step_seconds = resnet_step_seconds(arguments.batch, arguments.step_batch, device, clock)
    records = []
    for classes in arguments.classes:
        z = torch.randn(arguments.batch, arguments.dim, device=device, requires_grad=True)
        y = torch.randint(0, classes, (arguments.batch // 2,), device=device).repeat_interleave(2)
        rows = contenders(classes, arguments.dim, arguments.only, device)
        measure(rows, z, y.contiguous(), arguments.rounds, clock)
        records += table(rows, classes, step_seconds)
    suffix = f"{device.type}-{torch.get_num_threads()}" if device.type == "cpu" else device.type
    output = arguments.output or Path(__file__).parent / "results" / f"losses-{suffix}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "clock": "processor time, one thread" if arguments.cpu_time else "wall time",
        "batch": arguments.batch,
        "dim": arguments.dim,
        "resnet50_step_seconds": step_seconds,
    }
    output.write_text(json.dumps({"hardware": measured_on, **settings, "results": records}, indent=1) + "\n")
    print(f"\nwritten: {output}")


if __name__ == "__main__":
    main()
