"""The command line: every command with its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from probmetric import __version__
from probmetric.cli import _data, _models, _reports, _runs, _upkeep


def parser() -> argparse.ArgumentParser:
    """The parser; what it finds has `command`, the name, and `run_command`, the function that takes the options."""
    whole = argparse.ArgumentParser(
        prog="probmetric",
        description="Train, compare and use probabilistic image embeddings. "
        "`snakemake --cores all` runs the whole workflow; these are its steps, usable by hand.",
    )
    whole.add_argument("--version", action="version", version=f"probmetric {__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, function: Callable[[argparse.Namespace], None] | None, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.set_defaults(run_command=function)
        return command

    for group in (_data, _runs, _reports, _models, _upkeep):
        group.declare(add)
    return whole
