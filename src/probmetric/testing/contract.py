"""Base class and helpers of the contracts."""

from __future__ import annotations

import contextlib
import functools
import unittest
from collections.abc import Iterator
from typing import Any, ClassVar

from probmetric.registry import Registry


class Contract:
    """Tests of one registered component; a subclass sets the component's `name`.

    A component may be exempt from a test: its class declares `exempt = {"order_of_the_batch_does_not_matter": "why"}`,
    which is the test's name without `test_` and the reason. The test is then skipped.
    """

    registry: ClassVar[Registry]
    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for attribute in dir(cls) if hasattr(cls, "name") else ():
            if attribute.startswith("test_"):
                setattr(cls, attribute, _unless_exempt(getattr(cls, attribute)))


def _unless_exempt(test: Any) -> Any:
    @functools.wraps(test)
    def run(self: Contract) -> None:
        reasons = getattr(self.registry.get(self.name), "exempt", {})
        reason = reasons.get(test.__name__.removeprefix("test_"))
        skip_if(reason is not None, f"{self.name} is exempt: {reason}")
        test(self)

    return run


def skip_if(condition: bool, reason: str) -> None:
    """Skip the test, under pytest and unittest alike."""
    if condition:
        raise unittest.SkipTest(reason)


raises = unittest.TestCase().assertRaisesRegex
"""Check that a block raises an error with a message in which a pattern is found; it does not need pytest."""


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """Put `what` before the message of a failed assertion."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error


def check(contract: type[Contract], name: str, **attributes: Any) -> dict[str, str]:
    """Run all tests of `contract` on component `name`, without pytest; the first failure is raised.

    Returns:
        Name of a test -> "passed", or the reason why it was skipped.
    """
    case = type(f"Test_{name}", (contract,), {"name": name, **attributes})()
    results = {}
    for test in sorted(attribute for attribute in dir(case) if attribute.startswith("test_")):
        try:
            with telling(f"{test} of {name} ({getattr(case, test).__doc__})"):
                getattr(case, test)()
            results[test] = "passed"
        except unittest.SkipTest as reason:
            results[test] = str(reason)
    return results


def cases(contract: type[Contract], names: list[str], **attributes: Any) -> dict[str, type[Contract]]:
    """Return test classes of the components `names` by class name: `globals().update(cases(LossContract, [...]))`."""
    return {f"Test_{name}": type(f"Test_{name}", (contract,), {"name": name, **attributes}) for name in names}
