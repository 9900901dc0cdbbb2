"""Names of the finished runs of the small project; files of models and galleries as somebody hostile edits them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

RUNS = ("digits/arcface/seed0", "digits/arcface/seed1", "digits/laplace/seed0", "digits/ensemble/seed0")
PLAIN, LAPLACE, ENSEMBLE = RUNS[0], RUNS[2], RUNS[3]


def undigested(path: Path) -> Any:
    """Values of a JSON file without their digest."""
    values = json.loads(path.read_text())
    del values["digest"]
    return values


def resigned(values: dict[str, Any]) -> str:
    """Text of a JSON file with the digest of its values: who edits them can write that, too."""
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return json.dumps(values | {"digest": digest})
