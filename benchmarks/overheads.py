"""What the papers' losses cost beside a ResNet-50: their three claims of overhead, from measured steps.

    python benchmarks/overheads.py

Reads results/losses-cpu-1.json and losses-cpu-2.json (`benchmarks/losses.py`): forward and backward of each loss, and a
training step of a randomly initialised ResNet-50 of the same batch. The step with the claim's loss over that with the
opponent's, less 1, in per cent; writes results/overheads.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
CLAIMS = {
    "nivmf-overhead": ("el_nivmf", "proxy_nca_pp", 25.0),
    "nir-overhead": ("nir", "proxy_anchor", 1.0),
    "pfml-overhead": ("potential_field", "proxy_anchor", 5.0),
}


def overhead(record: dict[str, Any], loss: str, opponent: str, classes: int) -> float:
    """Return how many per cent longer a step takes with `loss` than with `opponent`."""
    step = 1000 * record["resnet50_step_seconds"]
    cost = {row["loss"]: row["milliseconds"] for row in record["results"] if row["classes"] == classes}
    return 100 * ((step + cost[loss]) / (step + cost[opponent]) - 1)


def main() -> None:
    """Write the record and print it."""
    rows: list[dict[str, Any]] = []
    for threads in (1, 2):
        record = json.loads((RESULTS / f"losses-cpu-{threads}.json").read_text(encoding="utf-8"))
        for claim, (loss, opponent, limit) in CLAIMS.items():
            for classes in (100, 11318):
                percent = overhead(record, loss, opponent, classes)
                row = {"claim": claim, "loss": loss, "opponent": opponent, "classes": classes, "threads": threads}
                rows.append(row | {"percent_more": round(percent, 4), "limit": limit, "holds": percent <= limit})
    (RESULTS / "overheads.json").write_text(json.dumps({"results": rows}, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        more = f"{row['percent_more']:.3f} % more ({row['limit']:g} allowed)"
        print(f"{row['claim']} {row['classes']} classes, {row['threads']} threads: {more}")


if __name__ == "__main__":
    main()
