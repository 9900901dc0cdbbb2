"""Cost of the directional statistics beside an elementwise tanh and beside drawing and normalising Gaussians.

    python benchmarks/directional.py [--device cuda] [--threads 1] [--compile] [--sizes 100000 1000000] [--dims 3 512]

Prints milliseconds (median; CPU time on a CPU) and the ratio to the named peer, measured in the same run. Targets:
log C_M and A_M at most 10 times tanh; a vMF draw at most 1.5 times the Gaussian one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from probmetric.directional import PowerSpherical, VonMisesFisher, log_normalizer, mean_resultant_length


def milliseconds(function: Callable[[], object], device: torch.device, repeats: int = 25) -> float:
    """Median time of `function()`; on a CPU its CPU time, because other processes disturb wall time."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times = []
    for _ in range(repeats + 2):
        start = clock()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(clock() - start)
    return 1e3 * statistics.median(times[2:])


def elementwise(arguments: argparse.Namespace, device: torch.device) -> None:
    """Table of log C_M, A_M and one backward pass against tanh."""
    functions = {"log_normalizer": log_normalizer, "mean_resultant_length": mean_resultant_length}
    print(f"{'function':22}{'dtype':>9}{'size':>9}{'dim':>6}{'ms':>9}{'tanh':>8}{'ratio':>7}{'fwd+bwd':>9}{'ratio':>7}")
    for dtype in (torch.float32, torch.float64):
        for size in arguments.sizes:
            kappa = 500 * torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=dtype)
            kappa = kappa.to(device).requires_grad_()
            fixed = kappa.detach()
            tanh = milliseconds(lambda k=fixed: k.tanh(), device)
            both = milliseconds(lambda k=kappa: torch.autograd.grad(k.tanh().sum(), k), device)
            for name, function in functions.items():
                timed = torch.compile(function) if arguments.compile else function
                for dim in arguments.dims:
                    forward = milliseconds(lambda f=timed, d=dim, k=fixed: f(k, d), device)
                    step = milliseconds(lambda f=timed, d=dim, k=kappa: torch.autograd.grad(f(k, d).sum(), k), device)
                    row = f"{name:22}{str(dtype)[6:]:>9}{size:>9}{dim:>6}{forward:>9.3f}{tanh:>8.3f}"
                    print(f"{row}{forward / tanh:>7.1f}{step:>9.3f}{step / both:>7.1f}")


def sampling(arguments: argparse.Namespace, device: torch.device) -> None:
    """Table of drawing 10 samples for 128 images against drawing and normalising Gaussians of that shape."""
    generator = torch.Generator(device).manual_seed(0)
    print(f"\n{'distribution':18}{'shape':>16}{'kappa':>7}{'draw ms':>9}{'Gauss ms':>10}{'ratio':>7}{'fwd+bwd ms':>12}")

    def gaussian(*shape: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(shape, generator=generator, device=device), dim=-1)

    def gradient(source: VonMisesFisher | PowerSpherical) -> object:
        samples = source.rsample((10,), generator=generator)
        return torch.autograd.grad(samples.square().sum(), source.concentration)

    for dim in arguments.dims:
        loc = gaussian(128, dim)
        for kappa in (10.0, float(dim), 1e4):
            concentration = torch.full((128,), kappa, device=device, requires_grad=True)
            for family in (VonMisesFisher, PowerSpherical):
                source = family(loc, concentration, validate_args=False)
                draw = milliseconds(lambda s=source: s.sample((10,), generator=generator), device)
                peer = milliseconds(lambda d=dim: gaussian(10, 128, d), device)
                step = milliseconds(lambda s=source: gradient(s), device)
                row = f"{family.__name__:18}{f'(10, 128, {dim})':>16}{kappa:>7.0f}{draw:>9.3f}{peer:>10.3f}"
                print(f"{row}{draw / peer:>7.2f}{step:>12.3f}")


def main() -> None:
    """Parse the options and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--compile", action="store_true", help="wrap the functions in torch.compile")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="elements per tensor")
    parser.add_argument("--dims", type=int, nargs="+", default=[2, 16, 128, 512, 2048], help="dimensions M")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    print(
        f"torch {torch.__version__}, {device}, {arguments.threads} threads{', compiled' if arguments.compile else ''}\n"
    )
    elementwise(arguments, device)
    sampling(arguments, device)


if __name__ == "__main__":
    main()
