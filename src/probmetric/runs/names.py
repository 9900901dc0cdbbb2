"""Name runs and prepared datasets, and the folders of runs.

    results/<dataset>[+split<s>][+noise<rate>]/<method>[+key=value...]/seed<k>/
    state/training/<the same>/    checkpoints, removed when training is finished
    state/features/               features of frozen trunks, which runs share; may be deleted at any time

Names contain no commas, because Snakemake separates wildcards by them in a cluster's jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from probmetric.io import FileError

RESULTS = Path("results")
STATE = Path("state/training")
FEATURES = Path("state/features")
EPOCHS = "training.epochs="  # beginning of the override of a run's length
_SEED = re.compile(r"seed([0-9]{1,19})")
_NOISE = re.compile(r"(?P<dataset>.+?)(?:\+noise(?P<rate>[0-9]*\.?[0-9]+))?")
_SPLIT = re.compile(r"(\+(?:split|fold)([1-9][0-9]{0,3}))(?=\+|$)")
NoiseKind = Literal["uniform", "nearest"]
_LABEL_NOISE = re.compile(r"(?P<kind>noise|uniform|nearest)(?P<rate>[0-9]*\.?[0-9]+)(?:s(?P<seed>[0-9]{1,19}))?")


def log_file(run: str) -> Path:
    """Return the path of a run's log, which the workflow's rule writes."""
    return Path(f"logs/run/{run}.log")


def data_name(dataset: str, noise: float) -> str:
    """Return the folder name of a prepared dataset or of its noisy variant, `glyphs+noise0.2`."""
    return f"{dataset}+noise{noise:g}" if noise else dataset


def split_data_name(name: str) -> tuple[str, str]:
    """Return dataset and label noise of a prepared folder's name: `cub-vmf+nearest0.2` -> (`cub-vmf`, `nearest0.2`).

    Another split of the classes is part of the dataset: `glyphs+split1+noise0.2` -> (`glyphs+split1`, `noise0.2`).
    """
    dataset, _, noise = without_split(name).partition("+")
    return "".join([dataset, *(split for split, _ in _SPLIT.findall(name))]), noise


def noise_text(name: str) -> str:
    """Return the label noise of a prepared folder's name as tables write it: `0`, `0.2` (uniform), `nearest0.2`."""
    return split_data_name(name)[1].removeprefix("noise") or "0"


def with_part(dataset: str, kind: Literal["split", "fold"], number: int) -> str:
    """Return the name of a dataset with another split of its classes, or other validation classes; 0: its own.

    `glyphs+split1`, `glyphs+fold1`.
    """
    return f"{dataset}+{kind}{number}" if number else dataset


def class_split(name: str) -> int:
    """Return the number of the split (or fold) of the classes in a prepared folder's name; 0: the dataset's own."""
    return next((int(number) for _, number in _SPLIT.findall(name)), 0)


def without_split(name: str) -> str:
    """Return the name of the same data with the dataset's own split: `glyphs+split1+noise0.2` -> `glyphs+noise0.2`."""
    return _SPLIT.sub("", name)


@dataclass(frozen=True)
class LabelNoise:
    """Label noise in the form of a folder's name: `noise0.2` (uniform, seed 0), `nearest0.2`, `uniform0.2s1`."""

    kind: NoiseKind
    rate: float
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> LabelNoise:
        """Read `nearest0.2s1`: kind, rate and, unless it is 0, seed.

        Raises:
            FileError: the text has another form, or the rate is not between 0 and 1.
        """
        parts = _LABEL_NOISE.fullmatch(text)
        if parts is None or not 0.0 < float(parts["rate"]) < 1.0:
            raise FileError(
                f"label noise {text!r} is not understood; write its kind (noise, nearest), its rate between 0 and 1 "
                "and, unless it is 0, its seed: noise0.2, nearest0.4, uniform0.2s1."
            )
        kind: NoiseKind = "nearest" if parts["kind"] == "nearest" else "uniform"
        noise = cls(kind, float(parts["rate"]), int(parts["seed"] or 0))
        if str(noise) != text:
            raise FileError(f"label noise {text!r} is written {str(noise)!r}.")
        return noise

    def __str__(self) -> str:
        plain = self.kind == "uniform" and not self.seed
        return f"{'noise' if plain else self.kind}{self.rate:g}{f's{self.seed}' if self.seed else ''}"


@dataclass(frozen=True, order=True)
class RunKey:
    """Name of a run: the parts of its folder's path."""

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
        data, seed = (_NOISE.fullmatch(parts[0]), _SEED.fullmatch(parts[2])) if len(parts) == 3 else (None, None)
        if data is None or seed is None:
            raise FileError(
                f"{folder} is not a run folder; expected results/<dataset>[+noise<rate>]/<method>[+key=value]/seed<k>."
            )
        method, _, overrides = parts[1].partition("+")
        key = cls(data["dataset"], float(data["rate"] or 0), method, overrides, int(seed[1]))
        if key.run != "/".join(parts):
            raise FileError(f"{'/'.join(parts)} is no name of a run; it is written {key.run}.")
        return key

    @property
    def variant(self) -> str:
        """Method with its overrides: the entry of a table's row or a figure's line."""
        return "+".join(filter(None, (self.method, self.overrides)))

    @property
    def data(self) -> str:
        """Name of the prepared dataset, noise included: `glyphs`, `glyphs+noise0.2`."""
        return data_name(self.dataset, self.noise)

    @property
    def group(self) -> str:
        """Return the key without its split of the classes, as tables group runs."""
        return without_split(self.data)

    @property
    def class_split(self) -> int:
        """Return the number of the split of the classes; 0: the dataset's own."""
        return class_split(self.data)

    @property
    def run(self) -> str:
        """The run's path below the results folder: its name everywhere in the reports."""
        return f"{self.data}/{self.variant}/seed{self.seed}"


def override_items(overrides: str) -> list[str]:
    """Return `["loss.scale=64", "training.epochs=90"]` from the text after the method in the name of a run."""
    return [item for item in overrides.split("+") if item]


def legal_name(text: str) -> str:
    """Return `text` with the characters MLflow refuses replaced: `glyphs+noise0.2` -> `glyphs-noise0.2`, `=` -> `:`."""
    return re.sub(r"[^\w\-. :/]", "-", text.replace("=", ":").replace(",", " "), flags=re.ASCII)


def table_of(name: str) -> str:
    """Return the file at the beginning of an experiment's name: `pfml/table1` of `pfml/table1+refit`."""
    return re.split("[@+]", name, maxsplit=1)[0]
