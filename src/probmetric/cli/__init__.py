"""Run the command `probmetric`: parse the arguments, call the library, print the result.

    commands        the commands and their arguments
    data            prepared datasets, and how your own become one
    runs            runs, searches for settings, lists of components and of finished runs
    reports         tables, figures and pages of experiments, MLflow
    models          trained models: export, galleries, search, certificates
    vectors         vectors of any model: galleries, search, certificates
    certificates    certificates of runs, and of galleries in use
    project         params.yaml

The module of a command is imported only when the command runs, so that help and errors for mistyped commands are fast.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence

from probmetric import __version__
from probmetric.cli.commands import declare
from probmetric.errors import OUT_OF_MEMORY, ProbMetricError, harmless, is_out_of_memory
from probmetric.io import problem_with
from probmetric.process import INTERRUPTED, exit_status, interruptible, switch_telemetry_off

EXIT_CONFIG = 2


def parser() -> argparse.ArgumentParser:
    """Return the parser; its results have `command`, the name, and `run_command`, "module:function"."""
    whole = argparse.ArgumentParser(
        prog="probmetric",
        description="Train, compare and use probabilistic image embeddings. "
        "`snakemake --cores all` runs the whole workflow; these are its steps, usable by hand.",
    )
    whole.add_argument("--version", action="version", version=f"probmetric {__version__}")
    declare(whole.add_subparsers(dest="command", metavar="COMMAND", required=True))
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors meant for people are printed as one paragraph, not as a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments)
    switch_telemetry_off()
    logging.basicConfig(format="%(message)s", force=True)
    logging.getLogger("probmetric").setLevel(logging.INFO)
    try:
        with interruptible():
            if any(not argument.strip() for argument in arguments):  # an empty path would be the current folder
                raise ProbMetricError(
                    "an argument is empty; is a variable of the shell not set? Name a file, a folder or a run."
                )
            module, _, function = options.run_command.partition(":")
            getattr(importlib.import_module(f"probmetric.cli.{module}"), function)(options)
    except KeyboardInterrupt as error:
        print(f"probmetric {options.command}: {INTERRUPTED}", file=sys.stderr)
        return exit_status(error)
    except BrokenPipeError:
        sys.stderr.close()
    except Exception as error:
        said = _said(error)
        if not said:
            raise
        print(f"probmetric {options.command}: {harmless(said)}", file=sys.stderr)
        return EXIT_CONFIG
    return 0


def _said(error: Exception) -> str:
    """Return the message of an error for users; "" if the error is for developers."""
    if isinstance(error, ProbMetricError):
        return str(error)
    if isinstance(error, MemoryError | RuntimeError) and is_out_of_memory(error):
        return OUT_OF_MEMORY
    if isinstance(error, ModuleNotFoundError) and not (error.name or "probmetric").startswith("probmetric"):
        return f"the module {error.name} is not installed; pip install 'probmetric[all]' brings what all commands need."
    if isinstance(error, OSError) and error.filename is not None:
        return str(problem_with(error.filename, error))
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        name = error.object.encode(errors="backslashreplace").decode()
        return f"{name} is not UTF-8 and cannot be stored; rename it."
    return ""
