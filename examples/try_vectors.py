"""Make the vectors that `probmetric try` asks: embeddings of rendered letters by the demo's EL-nivMF network.

    make demo && python examples/try_vectors.py results/glyphs/el_nivmf+training.epochs=10/seed0

The network has not seen the classes of these letters. Writes src/probmetric/serving/letters.npz: vector (N, 64) float16
and label (N,).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from probmetric.io import read_tensors

OUTPUT = Path("src/probmetric/serving/letters.npz")
CLASSES, IMAGES, SEED = 50, 40, 0


def main() -> None:
    """Take some test letters of a finished run."""
    record = read_tensors(Path(sys.argv[1]) / "embeddings" / "test.safetensors")[0]
    labels, generator = record["label"], np.random.default_rng(SEED)
    classes = generator.permutation(np.unique(labels))[:CLASSES]
    rows = np.concatenate([generator.permutation(np.flatnonzero(labels == name))[:IMAGES] for name in classes])
    names = np.array([f"letter {name}" for name in labels[rows]])
    np.savez_compressed(OUTPUT, vector=record["mean"][rows].astype(np.float16), label=names)


if __name__ == "__main__":
    main()
