"""The version of what preparation writes: part of every DVC stage that prepares data.

Raise it with every change that gives other bytes for the same archives and options (labels, splits, pixels, columns,
noise), wherever in this package it is made; DVC then prepares again what was prepared before. `tests/data` holds
fingerprints that fail when bytes change.
"""

FORMAT = 2
