"""A network of depthwise convolutions on a CPU: memory formats, and threads a job against jobs side by side.

    python benchmarks/memory_formats.py [--tag tf_efficientnet_lite0.in1k] [--pixels 128] [--output FILE]

Images per second of the whole machine, forward and in a training step (batches of 32, random weights): as many
processes as cores with one thread each, and one process with a thread for every core. They take turns, three each; the
fastest counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from typing import Any

import torch
from _machine import hardware, parser

from probmetric.models import create_encoder

BATCH, SECONDS, ROUNDS = 32, 4.0, 3


def measured(task: tuple[argparse.Namespace, str, int]) -> dict[str, float]:
    """Return images per second of this process, forward and in a training step."""
    options, memory, threads = task
    torch.set_num_threads(threads)
    encoder = create_encoder("timm", dim=128, image_size=options.pixels, pretrained=False, tag=options.tag)
    layout = torch.channels_last if memory == "channels_last" else torch.contiguous_format
    encoder = encoder.to(memory_format=layout)
    images = torch.randn(BATCH, 3, options.pixels, options.pixels).contiguous(memory_format=layout)

    def forward() -> None:
        with torch.no_grad():
            encoder.eval()(images)

    def step() -> None:
        encoder.train()(images).square().mean().backward()
        encoder.zero_grad()

    rates = {}
    for name, work in (("forward", forward), ("step", step)):
        work()
        began, count = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < SECONDS:
            work()
            count += 1
        rates[name] = BATCH * count / passed
    return rates


def main() -> None:
    """Measure, print and write the results."""
    command = parser(__doc__)
    command.add_argument("--tag", default="tf_efficientnet_lite0.in1k")
    command.add_argument("--pixels", type=int, default=128)
    options = command.parse_args()
    cores = len(os.sched_getaffinity(0))
    cases = [(memory, *jobs) for memory in ("channels_last", "contiguous") for jobs in ((cores, 1), (1, cores))]
    best: dict[tuple[str, int, int], dict[str, float]] = {}
    for case in cases * ROUNDS:
        memory, processes, threads = case
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            done = pool.map(measured, [(options, memory, threads)] * processes, chunksize=1)
        rates = {name: sum(each[name] for each in done) for name in done[0]}
        best[case] = {name: max(rate, best.get(case, rates)[name]) for name, rate in rates.items()}
    rows: list[dict[str, Any]] = [
        dict(zip(("memory", "processes", "threads"), case, strict=True))
        | {f"{name}, images/s": round(rate, 1) for name, rate in rates.items()}
        for case, rates in best.items()
    ]
    report = {"hardware": hardware("torch", "timm"), "network": options.tag, "pixels": options.pixels, "results": rows}
    print(json.dumps(report, indent=1))
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
