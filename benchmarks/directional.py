"""Cost of the directional statistics beside an elementwise tanh and beside drawing and normalising Gaussians.

    python benchmarks/directional.py [--device cuda] [--threads 1] [--compile] [--sizes 100000 1000000] [--dims 3 512]

Every function and its peer are called in turn, round by round, and the least time of each counts: other processes only
add time. One thread is timed by the processor time it uses, several threads and accelerators by the wall. Targets:
log C_M and A_M at most 10 times tanh in float32; a vMF draw at most 1.5 times the Gaussian one, 3 times up to M = 16.
Draws are 10 per image, for a batch of images and, up to M = 128, for so many that the calls of torch no longer count.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _machine import hardware

from probmetric.directional import PowerSpherical, VonMisesFisher, log_normalizer, mean_resultant_length

DRAWS, MOST_VALUES = 10, 2**24
Record = dict[str, Any]


def least_milliseconds(
    functions: dict[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, float]:
    """Least time of each function over `rounds` interleaved rounds, by its name."""
    single = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if single else time.perf_counter
    least = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = clock()
            function()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            least[name] = min(least[name], clock() - start)
    return {name: 1e3 * seconds for name, seconds in least.items()}


def gradient(function: Callable[..., torch.Tensor], kappa: torch.Tensor, *options: int) -> object:
    """One pass forward and back."""
    return torch.autograd.grad(function(kappa, *options).sum(), kappa)


def elementwise(arguments: argparse.Namespace, device: torch.device) -> list[Record]:
    """Log C_M, A_M and one backward pass against tanh."""
    functions = {"log_normalizer": log_normalizer, "mean_resultant_length": mean_resultant_length}
    if arguments.compile:
        functions = {name: torch.compile(function) for name, function in functions.items()}
    print(f"{'function':22}{'dtype':>9}{'size':>9}{'dim':>6}{'ms':>9}{'x tanh':>8}{'fwd+bwd':>9}{'x tanh':>8}")
    records = []
    for dtype in (torch.float32, torch.float64):
        for size in arguments.sizes:
            kappa = 500 * torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=dtype)
            kappa = kappa.to(device).requires_grad_()
            fixed = kappa.detach()
            for dim in arguments.dims:
                timed: dict[str, Callable[[], object]] = {
                    "tanh": functools.partial(torch.tanh, fixed),
                    "tanh step": functools.partial(gradient, torch.tanh, kappa),
                }
                for name, function in functions.items():
                    timed[name] = functools.partial(function, fixed, dim)
                    timed[name + " step"] = functools.partial(gradient, function, kappa, dim)
                least = least_milliseconds(timed, device, arguments.rounds)
                for name in functions:
                    record = {"function": name, "dtype": str(dtype)[6:], "size": size, "dim": dim}
                    record |= {"milliseconds": least[name], "ratio_to_tanh": least[name] / least["tanh"]}
                    step = least[name + " step"]
                    record |= {"step_milliseconds": step, "step_ratio_to_tanh": step / least["tanh step"]}
                    records.append(record)
                    row = f"{name:22}{record['dtype']:>9}{size:>9}{dim:>6}{least[name]:>9.3f}"
                    print(f"{row}{record['ratio_to_tanh']:>8.1f}{step:>9.3f}{record['step_ratio_to_tanh']:>8.1f}")
    return records


def sampling(arguments: argparse.Namespace, device: torch.device) -> list[Record]:
    """Draws against drawing and normalising Gaussians of the same shape."""
    generator = torch.Generator(device).manual_seed(0)
    print(f"\n{'distribution':18}{'shape':>16}{'kappa':>7}{'draw ms':>9}{'Gauss ms':>10}{'ratio':>7}{'fwd+bwd ms':>12}")

    def gaussian(*shape: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(shape, generator=generator, device=device), dim=-1)

    def gradient_of_draws(source: VonMisesFisher | PowerSpherical) -> object:
        samples = source.rsample((DRAWS,), generator=generator)
        return torch.autograd.grad(samples.square().sum(), source.concentration)

    records = []
    shapes = ((images, dim) for images in arguments.images for dim in arguments.dims)
    for images, dim in (shape for shape in shapes if DRAWS * math.prod(shape) <= MOST_VALUES):
        loc = gaussian(images, dim)
        for kappa in (10.0, float(dim), 1e4):
            concentration = torch.full((images,), kappa, device=device, requires_grad=True)
            for family in (VonMisesFisher, PowerSpherical):
                source = family(loc, concentration, validate_args=False)
                timed: dict[str, Callable[[], object]] = {
                    "draw": functools.partial(source.sample, (DRAWS,), generator=generator),
                    "peer": functools.partial(gaussian, DRAWS, images, dim),
                    "step": functools.partial(gradient_of_draws, source),
                }
                least = least_milliseconds(timed, device, arguments.rounds)
                record = {"distribution": family.__name__, "shape": [DRAWS, images, dim], "kappa": kappa}
                record |= {"milliseconds": least["draw"], "gaussian_milliseconds": least["peer"]}
                record |= {"ratio_to_gaussian": least["draw"] / least["peer"], "step_milliseconds": least["step"]}
                records.append(record)
                row = f"{family.__name__:18}{f'({DRAWS}, {images}, {dim})':>16}{kappa:>7.0f}{least['draw']:>9.3f}"
                print(f"{row}{least['peer']:>10.3f}{record['ratio_to_gaussian']:>7.2f}{least['step']:>12.3f}")
    return records


def main() -> None:
    """Parse the options, print both tables and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--compile", action="store_true", help="wrap the functions in torch.compile")
    parser.add_argument("--rounds", type=int, default=30, help="rounds (default: 30)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="elements per tensor")
    parser.add_argument("--dims", type=int, nargs="+", default=[2, 16, 128, 512, 2048], help="dimensions M")
    parser.add_argument("--images", type=int, nargs="+", default=[112, 11_200], help="images that draws are made for")
    parser.add_argument("--output", type=Path, default=None, help="JSON file (benchmarks/results/directional-*.json)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    measured_on = hardware("torch", device=device)
    records = {"elementwise": elementwise(arguments, device), "sampling": sampling(arguments, device)}
    suffix = f"{device.type}-{arguments.threads}" if device.type == "cpu" else device.type
    output = arguments.output or Path(__file__).parent / "results" / f"directional-{suffix}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    clock = "processor time" if suffix == "cpu-1" else "wall time"
    output.write_text(json.dumps({"hardware": measured_on, "clock": clock, **records}, indent=1) + "\n")
    print(f"\nwritten: {output}")


if __name__ == "__main__":
    main()
