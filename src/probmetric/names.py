"""What runs and prepared datasets are called, and nothing else.

    results/<dataset>[+noise<rate>]/<method>[+key=value...]/seed<k>/

No commas: Snakemake separates wildcards by them when it hands a job to a cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from probmetric.io import FileError

_SEED = re.compile(r"seed(\d+)")
_NOISE = re.compile(r"(?P<dataset>.+?)(?:\+noise(?P<rate>\d*\.?\d+))?")


def data_name(dataset: str, noise: float) -> str:
    """Folder name of a prepared dataset or of its noisy variant, `glyphs+noise0.2`."""
    return f"{dataset}+noise{noise:g}" if noise else dataset


@dataclass(frozen=True, order=True)
class RunKey:
    """Identity of a run: the parts of its folder's path."""

    dataset: str
    noise: float
    method: str
    overrides: str
    seed: int

    @classmethod
    def parse(cls, folder: str | Path) -> RunKey:
        """Read the identity from the last three parts of a run folder's path.

        Raises:
            FileError: the path does not end in `<dataset>[+noise<rate>]/<method>[+key=value]/seed<k>`.
        """
        parts = Path(folder).parts[-3:]
        seed = _SEED.fullmatch(parts[-1]) if len(parts) == 3 else None
        if seed is None:
            raise FileError(
                f"{folder} is not a run folder; expected results/<dataset>[+noise<rate>]/<method>[+key=value]/seed<k>."
            )
        data = _NOISE.fullmatch(parts[0])
        method, _, overrides = parts[1].partition("+")
        return cls(data["dataset"], float(data["rate"] or 0), method, overrides, int(seed[1]))  # type: ignore[index]

    @property
    def variant(self) -> str:
        """Method with its overrides: what a table's row or a figure's line stands for."""
        return f"{self.method}+{self.overrides}" if self.overrides else self.method

    @property
    def data(self) -> str:
        """Name of the prepared dataset, noise included: `glyphs`, `glyphs+noise0.2`."""
        return data_name(self.dataset, self.noise)

    @property
    def run(self) -> str:
        """The run's path below the results folder: its name everywhere in the reports."""
        return f"{self.data}/{self.variant}/seed{self.seed}"
