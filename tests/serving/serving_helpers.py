"""Names of the finished runs of the small project; files of models and galleries as somebody hostile edits them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RUNS = ("digits/arcface/seed0", "digits/arcface/seed1", "digits/laplace/seed0", "digits/ensemble/seed0")
PLAIN, LAPLACE, ENSEMBLE = RUNS[0], RUNS[2], RUNS[3]


def undigested(path: Path) -> Any:
    """Values of a JSON file without their digest: who edits them can leave it out."""
    values = json.loads(path.read_text())
    del values["digest"]
    return values
