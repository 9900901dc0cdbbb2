"""How many checks does it take to notice that more is wrong than was promised? Medians, and what no test can beat.

Runs of checks are drawn at 1, 1.5, 2 and 3 times the promised risk; `trust.spot_checks` at 1 % false alarms says at
which check it alarms. `bound` is the least number of checks in which any test of that level notices half of the time.

    python benchmarks/spot_checks.py --runs 1000 --output benchmarks/results/spot_checks.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from probmetric import trust
from probmetric.io import write_json

RISKS, FACTORS, LONGEST = (0.05, 0.1, 0.2, 0.3), (1.5, 2.0, 3.0), 3000


def main() -> None:
    """Print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/spot_checks.json"))
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    results = {}
    for risk in RISKS:
        clean = [
            trust.spot_checks(generator.random(LONGEST) < risk, risk=risk).alarm is not None
            for _ in range(options.runs)
        ]
        row = {"false_alarms": float(np.mean(clean))}
        for factor in FACTORS:
            alarms = [
                trust.spot_checks(generator.random(LONGEST) < factor * risk, risk=risk).alarm or LONGEST + 1
                for _ in range(options.runs)
            ]
            row[f"{factor:g}"] = float(np.median(alarms))
            row[f"{factor:g}_bound"] = trust.checks_needed(factor * risk, risk=risk)
        results[f"{risk:g}"] = row
        shown = ", ".join(f"{factor:g} x: {row[f'{factor:g}']:.0f} ({row[f'{factor:g}_bound']})" for factor in FACTORS)
        print(f"risk {risk:g}: {shown}; false alarms in {LONGEST} checks {row['false_alarms']:.4f}", flush=True)
    write_json(options.output, {"runs": options.runs, "results": results})


if __name__ == "__main__":
    main()
