"""Where installations of before begin."""

from probmetric.cli import main

__all__ = ["main"]
