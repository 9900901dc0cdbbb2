"""Images loaded by threads a few batches ahead of whoever computes with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TypeVar

import torch

from probmetric.data.image_file import workers_available

AHEAD = 4

T = TypeVar("T")
R = TypeVar("R")


def loading_threads(device: torch.device) -> int:
    """As many threads as the job has beside a CUDA device; a few where loading and computing share the processor."""
    spare = torch.get_num_threads() if device.type == "cuda" else 1
    return max(min(workers_available(), AHEAD), spare)


def ahead_of(load: Callable[[T], R], items: Sequence[T], threads: int, device: torch.device) -> Iterator[R]:
    """`map(load, items)` in order, computed a few items ahead by `threads` threads; 0 computes when asked.

    Each thread makes the CUDA `device` its current one: pinning memory elsewhere would open a context on device 0.
    """
    if not threads:
        yield from map(load, items)
        return
    prepare = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
    with ThreadPoolExecutor(threads, thread_name_prefix="images", initializer=prepare) as pool:
        rest = iter(items)
        waiting = deque(pool.submit(load, item) for item in islice(rest, max(AHEAD, threads + 1)))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(load, item) for item in islice(rest, 1))
            yield result


def sent(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Images (B, C, H, W) on the device, copied while it computes."""
    return images.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else images
