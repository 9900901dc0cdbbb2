"""What commands of several kinds need: params.yaml, plans, arguments that mean the same everywhere."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from probmetric.io import FileError, present

if TYPE_CHECKING:
    from probmetric.config import Params
    from probmetric.planning.plans import ReportPlan

PARAMS = Path("params.yaml")
# Declares a command: its name, what runs it, one line of help.
Add = Callable[[str, Callable[[argparse.Namespace], None] | None, str], argparse.ArgumentParser]


def harmless(text: str) -> str:
    """A text without control characters: names of files must not steer the terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: found[0].encode("unicode_escape").decode(), text)


def params() -> Params:
    """The project's params.yaml."""
    from probmetric.config import Params, load

    if not present(PARAMS):
        raise FileError(
            f"there is no {PARAMS} in {Path.cwd()}; run this command inside a project folder, the one that holds it "
            "(`probmetric init` starts one)."
        )
    found: Params = load(Params, PARAMS)
    return found


def report_plan(options: argparse.Namespace) -> ReportPlan:
    """The plan given (as the workflow does); by hand, what params.yaml says of the experiment now."""
    from probmetric.planning.plans import ReportPlan

    if options.plan is not None:
        return ReportPlan.read(options.plan)
    from probmetric.planning.workflow import WorkflowPlan

    config = params().model_dump(mode="json") | {"experiments": [options.experiment]}
    return WorkflowPlan.from_config(config).report_plan(options.experiment)


def whole(least: int, most: int) -> Callable[[str], int]:
    """Type of an argument that is a whole number from `least` to `most`."""

    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not a number from {least} to {most}")
        return value

    read.__name__ = "whole number"  # what argparse calls it where `text` is none
    return read


def add_promise(command: argparse.ArgumentParser) -> None:
    """The arguments of a certificate: risk and confidence."""
    command.add_argument("--risk", type=float, required=True, help="share of wrong answers allowed, e.g. 0.05")
    command.add_argument("--confidence", type=float, default=0.9, help="chance that the promise holds (default: 0.9)")


def add_on_error(command: argparse.ArgumentParser) -> None:
    """What is done with images that cannot be read."""
    command.add_argument("--on-error", choices=["raise", "skip"], default="raise", help="what is done with bad images")


def add_threads(command: argparse.ArgumentParser) -> None:
    """How many CPU threads the command may use."""
    command.add_argument("--threads", type=whole(1, 4096), default=1, help="CPU threads")
