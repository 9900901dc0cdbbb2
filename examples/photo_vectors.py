"""Write vectors.parquet and new.parquet from a folder of photographs: the numbers of docs/guide/vectors.md.

    probmetric export birds/birds-frozen/seed0 birds-model       # after `probmetric init` and `snakemake` on the folder
    python examples/photo_vectors.py birds-model photos/cub100/images
    probmetric certify vectors.parquet --risk 0.05
    probmetric search vectors.parquet new.parquet --risk 0.05 --csv

The photographs that ask are drawn at random, by one seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import probmetric

ASKED, BATCH = 618, 256


def main() -> None:
    """Embed every photograph and keep some back, drawn at random, to ask with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of `probmetric export`")
    parser.add_argument("photos", type=Path, help="one folder per class")
    arguments = parser.parse_args()
    model = probmetric.load(arguments.model)
    paths = sorted(arguments.photos.rglob("*.jpg"))
    batches = [paths[start : start + BATCH] for start in range(0, len(paths), BATCH)]
    vectors = np.concatenate([model.embed([str(path) for path in batch]).mean.numpy() for batch in batches])
    asked = np.isin(np.arange(len(paths)), np.random.default_rng(0).permutation(len(paths))[:ASKED])
    for name, kept in (("vectors", ~asked), ("new", asked)):
        rows = np.flatnonzero(kept).tolist()
        columns = {
            "vector": list(vectors[rows]),
            "label": [paths[row].parent.name for row in rows],
            "path": [str(paths[row].relative_to(arguments.photos)) for row in rows],
        }
        pq.write_table(pa.table(columns), f"{name}.parquet")


if __name__ == "__main__":
    main()
