"""Run `python -m probmetric.cli`."""

import sys

from probmetric.cli import main

sys.exit(main())
