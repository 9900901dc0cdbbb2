"""The printed numbers a claim rests on, looked up among the transcribed tables.

`nir/table1 cub: nir-proxy_anchor=64.4±0.3 nir-nir_proxy_anchor=66.0±0.3`
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from probmetric.io import FileError
from probmetric.runs.names import LabelNoise, split_data_name

if TYPE_CHECKING:
    from probmetric.reporting.claims import Claim
    from probmetric.reporting.published import PublishedNumber

_LINE = re.compile(r"(?P<table>\S+) (?P<data>[^\s:]+)(?: (?P<metric>[^\s:]+))?: (?P<values>.+)")
_VALUE = re.compile(r"(?P<part>[^\s=]+)=(?P<value>[\d.]+)(?:±(?P<spread>[\d.]+))?")


def printed_numbers(claim: Claim, numbers: Iterable[PublishedNumber]) -> dict[str, dict[str, PublishedNumber]]:
    """Line of `claim.printed` -> part -> the transcribed number.

    Raises:
        FileError: a line cannot be read, or no table has that number.
    """
    numbers = list(numbers)
    return {line: _line(claim, line, numbers) for line in claim.printed}


def _line(claim: Claim, line: str, numbers: list[PublishedNumber]) -> dict[str, PublishedNumber]:
    read = _LINE.fullmatch(line)
    values = [_VALUE.fullmatch(value) for value in read["values"].split()] if read else []
    if read is None or None in values:
        raise FileError(
            f"claim {claim.id!r}: {line!r} is not `<table> <dataset> [<metric>]: <part>=<value>[±<spread>] ...`."
        )
    dataset, noise = split_data_name(read["data"])
    rate = LabelNoise.parse(noise).rate if noise else 0.0
    place = (read["table"], (dataset,), rate, read["metric"] or claim.metric)
    here = [n for n in numbers if (n.table, n.datasets, n.noise, n.metric) == place]
    return {match["part"]: _number(claim, line, match, here) for match in values if match}


def _number(claim: Claim, line: str, match: re.Match[str], here: list[PublishedNumber]) -> PublishedNumber:
    for number in here:
        spread = None if number.spread is None else number.text(number.spread)
        if (number.method, number.text(number.value), spread) == (match["part"], match["value"], match["spread"]):
            return number
    raise FileError(f"claim {claim.id!r}, {line!r}: the transcribed table has no {match[0]} there.")
