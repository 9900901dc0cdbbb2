"""Stands until every environment is installed again: `probmetric` starts in `probmetric.cli`."""
