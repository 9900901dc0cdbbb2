#!/usr/bin/env python3
"""Prints what share of each room's lines the last measured tests ran: `make test COVER=yes`."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import PurePath

done = subprocess.run(
    [sys.executable, "-m", "coverage", "json", "--quiet", "-o", "-"], check=True, capture_output=True, text=True
)
lines, run = Counter(), Counter()
for name, file in json.loads(done.stdout)["files"].items():
    room = PurePath(name).parts[2].removesuffix(".py")
    for key in (room, "all"):
        lines[key] += file["summary"]["num_statements"]
        run[key] += file["summary"]["covered_lines"]
for room in sorted(lines, key=lambda room: (room == "all", room)):
    share = 100 * run[room] / max(lines[room], 1)
    print(f"{room:<16} {share:5.1f} % of {lines[room]:6,} lines")
