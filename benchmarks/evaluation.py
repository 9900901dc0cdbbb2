"""Time and memory of retrieval evaluation against named peers, each in a fresh process, all in one run.

    python benchmarks/evaluation.py                     CUB's and SOP's test shapes, all contenders, growth, cold start
    python benchmarks/evaluation.py --shapes cub        the small shape only
    python benchmarks/evaluation.py --contenders probmetric faiss_1001 --shapes sop --growth

Contenders, on the same unit rows, clustered by class:
    probmetric   every metric of probmetric.retrieval.retrieval_metrics, ks 1, 10, 100, 1000
    match        the match record alone (match_record): each row's nearest among the others, ten that vote, gap
    both         metrics and match record from one pass (match_among)
    gemm         all-pairs float32 matrix product in 2,048-wide tiles, results thrown away (the floor of a full search)
    gemm_half    the same on and above the diagonal only (the floor of a symmetric one)
    faiss_1001   faiss IndexFlatIP.search with k = 1,001: neighbours only, no metric
    pml_r        pytorch-metric-learning AccuracyCalculator, k = "max_bin_count": P@1, MAP@R, R-precision
    pml_1000     the same with k = 1,000 and MAP@1000

Wall seconds are the median of --repeats, CPU seconds those of all threads; peak is resident memory above that at the
start of the call, imports and embeddings excluded. Wall times mean little on a busy machine: the load is recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _machine import hardware

PACKAGES = ("numpy", "numba", "faiss-gpu", "faiss-cpu", "torch", "pytorch-metric-learning")
SHAPES = {"cub": (5_924, 512, 100), "sop": (60_502, 512, 11_316)}
SPREADS = {"cub": (2.0, 3.0), "sop": (2.25,)}
GROWTH = (5_000, 10_000, 20_000, 40_000, 60_000, 120_000)
CONTENDERS = ("probmetric", "match", "both", "gemm", "gemm_half", "faiss_1001", "pml_r", "pml_1000")
TILE = 2048


def synthetic(count: int, dim: int, classes: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows (N,M) float32 scattered around class directions, sorted by class, at least two a class; labels (N,)."""
    generator = np.random.default_rng(0)
    labels = np.sort(np.r_[np.repeat(np.arange(classes), 2), generator.integers(0, classes, count - 2 * classes)])
    centres = generator.standard_normal((classes, dim), dtype=np.float32)
    rows = centres[labels] + np.float32(spread) * generator.standard_normal((count, dim), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, labels


def run_probmetric(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Every retrieval metric."""
    from probmetric.retrieval import retrieval_metrics

    return retrieval_metrics(rows, labels, ks=(1, 10, 100, 1000))


def run_match(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Every row asked among the others."""
    from probmetric.retrieval import match_record

    return {"cosine": float(match_record(rows, rows, labels, self_index=np.arange(len(rows)))["cosine"].mean())}


def run_both(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The metrics and the match record."""
    from probmetric.retrieval import match_among, summarize

    match, per_query = match_among({"mean": rows}, labels, ks=(1, 10, 100, 1000))
    return summarize(per_query) | {"cosine": float(match.similarity.mean())}


def run_gemm(rows: np.ndarray, labels: np.ndarray, half: bool = False) -> dict[str, float]:
    """All products of pairs of rows, or those on and above the diagonal."""
    space = np.empty(TILE * TILE, dtype=np.float32)
    for i in range(0, len(rows), TILE):
        for j in range(i if half else 0, len(rows), TILE):
            shape = (min(TILE, len(rows) - i), min(TILE, len(rows) - j))
            np.matmul(rows[i : i + TILE], rows[j : j + TILE].T, out=space[: shape[0] * shape[1]].reshape(shape))
    return {}


def run_gemm_half(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Products on and above the diagonal."""
    return run_gemm(rows, labels, half=True)


def run_faiss(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Neighbour lists of 1,001."""
    import faiss

    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    _, found = index.search(rows, min(1001, len(rows)))
    return {"searched": float(found.shape[1])}


def run_pml(rows: np.ndarray, labels: np.ndarray, k: str | int = "max_bin_count") -> dict[str, float]:
    """Pytorch-metric-learning's calculator."""
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = ["precision_at_1", "r_precision", "mean_average_precision_at_r"]
    names += ["mean_average_precision"] if k == 1000 else []
    calculator = AccuracyCalculator(include=tuple(names), k=k, device=torch.device("cpu"))
    found = calculator.get_accuracy(torch.from_numpy(rows), torch.from_numpy(labels))
    return {name: float(found[name]) for name in names}


def run_pml_1000(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The same with 1,000 neighbours and MAP@1000."""
    return run_pml(rows, labels, 1000)


RUNNERS: dict[str, Callable[[np.ndarray, np.ndarray], dict[str, float]]] = {
    "probmetric": run_probmetric,
    "match": run_match,
    "both": run_both,
    "gemm": run_gemm,
    "gemm_half": run_gemm_half,
    "faiss_1001": run_faiss,
    "pml_r": run_pml,
    "pml_1000": run_pml_1000,
}


def measure(name: str, rows: np.ndarray, labels: np.ndarray, repeats: int) -> dict[str, object]:
    """Run one contender in this process; a call on a few rows first loads and compiles what it needs."""
    if name in ("probmetric", "match", "both"):
        from probmetric.retrieval.compiled import Lists, compiled_counts
        from probmetric.retrieval.problem import build_problem

        lists = Lists(rows[:200], labels[:200], 10)
        list(compiled_counts(build_problem(rows[:200], labels[:200]), lists=lists))
        lists.nearest()
    RUNNERS[name](rows[:1200], labels[:1200])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    resident = _memory("VmRSS")
    walls, processor = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        result = RUNNERS[name](rows, labels)
        walls.append(time.perf_counter() - wall)
        processor.append(time.process_time() - cpu)
    return {
        "wall_s": round(float(np.median(walls)), 3),
        "cpu_s": round(float(np.median(processor)), 3),
        "peak_mb": round((_memory("VmHWM") - resident) / 1024, 1),
        "resident_before_mb": round(min(before, resident) / 1024, 1),
        "metrics": {key: round(value, 7) for key, value in result.items()},
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def in_child(arguments: list[str]) -> dict[str, object]:
    """Run this file in a fresh interpreter and read the JSON it prints."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"benchmark child {arguments} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def cold_start() -> dict[str, float]:
    """Seconds of a fresh process that imports the library and evaluates 2,000 x 64 embeddings; best of 5."""
    code = (
        "import numpy as np, probmetric.metrics as m, probmetric.retrieval as r; g = np.random.default_rng(0); "
        "x = g.normal(size=(2000, 64)); x /= np.linalg.norm(x, axis=1, keepdims=True); "
        "y = np.repeat(np.arange(100), 20); "
        "r.retrieval_metrics(x, y); m.ood_metrics(x[:, 0], x[:, 1]); m.sparsification(x[:, 0], y % 2)"
    )
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        seconds.append(time.perf_counter() - start)
    return {"import_and_run_s": round(min(seconds), 3), "median_s": round(float(np.median(seconds)), 3)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--contenders", nargs="*", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--growth", action="store_true", help="also time probmetric from 5,000 to 120,000 rows")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of the small shape (the large one runs once)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/evaluation.json"))
    parser.add_argument("--child", nargs=4, metavar=("NAME", "ROWS", "LABELS", "REPEATS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, rows, labels, repeats = options.child
        print(json.dumps(measure(name, np.load(rows), np.load(labels), int(repeats))))
        return
    report: dict[str, object] = {"hardware": hardware(*PACKAGES), "cold_start": cold_start(), "runs": []}
    pairs = [(shape, spread) for shape in options.shapes for spread in SPREADS[shape]]
    cases = [(shape, *SHAPES[shape], spread, options.contenders) for shape, spread in pairs]
    if options.growth:
        cases += [("growth", count, 512, count // 5, 2.0, ["probmetric", "gemm_half"]) for count in GROWTH]
    for shape, count, dim, classes, spread, contenders in cases:
        with tempfile.TemporaryDirectory() as folder:
            rows, labels = synthetic(count, dim, classes, spread)
            np.save(f"{folder}/rows.npy", rows)
            np.save(f"{folder}/labels.npy", labels)
            for name in contenders:
                repeats = options.repeats if count < 20_000 else 1
                found = in_child(["--child", name, f"{folder}/rows.npy", f"{folder}/labels.npy", str(repeats)])
                entry = {"shape": shape, "rows": count, "dim": dim, "classes": classes, "spread": spread, "name": name}
                report["runs"].append(entry | found)  # type: ignore[attr-defined]
                print(f"{shape} {count:>7} spread {spread} {name:<11} wall {found['wall_s']:>8} s", end=" ")
                print(f"cpu {found['cpu_s']:>8} s  peak {found['peak_mb']:>8} MB  load {found['load']}", flush=True)
                options.output.parent.mkdir(parents=True, exist_ok=True)
                options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
