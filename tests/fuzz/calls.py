"""Random calls: valid arguments, what is done to them, and how an answer is judged.

A call ends well in two ways: with a result, or with a sentence (a ValueError, a TypeError or an error of our own, which
our code raises, of several words). All else is a fault: another exception, another library's message, a warning, ten
seconds. Valid arguments in another layout (order, strides, read-only, a list, a tensor) give what the plain ones give.
"""

from __future__ import annotations

import contextlib
import math
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import probmetric
from probmetric.errors import ProbMetricError

HOME = str(Path(probmetric.__file__).parent)
DISTRIBUTIONS = "torch/distributions"  # its checks name the parameter; ours are such distributions
SECONDS = 10
SENTENCE = 4  # words at least


class CallError(AssertionError):
    """A call that ended badly."""


@contextlib.contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    """Raise a CallError in what takes longer of this process's computing: other tests may run beside it."""

    def stop(signum: int, frame: Any) -> None:
        raise CallError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, Any]:
    """Return ("result", value) or ("refused", message).

    Raises:
        CallError: the call ended badly.
    """
    try:
        with limited():
            return "result", function(*args, **kwargs)
    except CallError:
        raise
    except (ValueError, TypeError, ProbMetricError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = str(error)
        if not frame.filename.startswith(HOME) and DISTRIBUTIONS not in frame.filename:
            raise CallError(f"{type(error).__name__} of {frame.filename}:{frame.lineno}: {message}") from error
        ours = frame.filename.startswith(HOME)
        if len(message.split()) < SENTENCE or (ours and not (frame.line or "").startswith("raise ")):
            raise CallError(f"{type(error).__name__} at {frame.filename}:{frame.lineno} without a sentence") from error
        return "refused", message
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise CallError(f"{type(error).__name__} at {frame.filename}:{frame.lineno}: {error}") from error


def numbers(value: Any) -> Iterator[float]:
    """Yield every number in a result, in order."""
    if isinstance(value, torch.Tensor):
        value = value.detach().double().numpy()
    if is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        yield from value.ravel().astype(float).tolist()
    elif isinstance(value, bool | int | float | np.number):
        yield float(value)


def assert_alike(first: Any, second: Any, tolerance: float = 1e-6) -> None:
    """Compare the numbers of two results."""
    a, b = list(numbers(first)), list(numbers(second))
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x == y or (math.isnan(x) and math.isnan(y)) or math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance)


def laid_out(array: Any, generator: np.random.Generator) -> Any:
    """Return an array of the same values in another layout."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        return array
    kind = generator.choice(["fortran", "strided", "negative", "read-only", "list", "tensor", "column"])
    if kind == "fortran":
        return np.asfortranarray(array)
    if kind == "strided":
        return np.repeat(array, 2, axis=0)[::2]
    if kind == "negative":
        return np.ascontiguousarray(array[::-1])[::-1]
    if kind == "read-only":
        copy = array.copy()
        copy.flags.writeable = False
        return copy
    if kind == "column" and array.ndim == 2:
        return np.concatenate([array, array], axis=1)[:, : array.shape[1]]
    return array.tolist() if kind == "list" else torch.from_numpy(array.copy())


DTYPES = ("float16", "float32", "float64", "int8", "int64", "uint8", "uint64", "bool", "complex64", "object", "str")
ODD = (None, 0, -1, 1, 1.5, math.nan, math.inf, -math.inf, 10**30, 1e-300, "x", "", b"x", [], {}, True, 1 + 2j)


def spoilt(value: Any, generator: np.random.Generator) -> Any:
    """Return the argument with something done to it: its type, dtype, shape, or some of its entries."""
    if ((isinstance(value, Mapping) and value) or is_dataclass(value)) and generator.random() < 0.8:
        return _spoilt_inside(value, generator)
    if not isinstance(value, np.ndarray) or not value.ndim:
        return ODD[generator.integers(len(ODD))]
    kind = generator.choice(["dtype", "shape", "entries", "type", "size"] if value.dtype.kind in "biuf" else ["shape"])
    if kind == "dtype":
        with np.errstate(all="ignore"), contextlib.suppress(TypeError, ValueError):
            return np.nan_to_num(np.asarray(value).real).astype(DTYPES[generator.integers(len(DTYPES))])
    if kind == "shape":
        shapes = (
            value[None],
            value[..., None],
            value.ravel(),
            value.T,
            value.ravel()[:1].reshape(()) if value.size else value,
            value[None, None],
        )
        return shapes[generator.integers(len(shapes))]
    if kind == "size":
        count = int(generator.integers(3))
        cut = (value[:count], value[:-1], np.concatenate([value, value[:1]]), value[..., :0], value[..., :1])
        return cut[generator.integers(len(cut))]
    if kind == "type":
        choices = (
            None,
            "text",
            3,
            2.5,
            {},
            {"a": value},
            [value],
            value.tolist(),
            torch.as_tensor(value).to(torch.bfloat16),
        )
        choices += (torch.as_tensor(value).double().requires_grad_(), [[1, 2], [3]], iter([]), object(), set())
        return choices[generator.integers(len(choices))]
    if not value.size or value.dtype.kind not in "iuf":
        return value
    entries = (0, -1, 1, 1e-300, 1e300, 1e-8, 1e20, math.nan, math.inf, -math.inf, 2**31, 2**40)
    entry = entries[generator.integers(len(entries))]
    changed = value.astype(np.float64) if isinstance(entry, float) else value.astype(np.result_type(value, np.int64))
    where = generator.choice(["one", "row", "all"])
    if where == "all":
        changed[...] = entry
    elif where == "row":
        changed[generator.integers(len(changed))] = entry
    else:
        changed.ravel()[generator.integers(changed.size)] = entry
    return changed


def _spoilt_inside(value: Any, generator: np.random.Generator) -> Any:
    """Return a mapping or dataclass with one of its values spoilt or, of a mapping, gone."""
    if is_dataclass(value):
        field = fields(value)[generator.integers(len(fields(value)))]
        return replace(value, **{field.name: spoilt(getattr(value, field.name), generator)})
    key = list(value)[generator.integers(len(value))]
    others = {name: each for name, each in value.items() if name != key}
    return others | {key: spoilt(value[key], generator)} if generator.random() < 0.8 else others


def fuzz(
    cases: Mapping[str, tuple[Callable[..., Any], Callable[[np.random.Generator], dict[str, Any]]]],
    calls: int,
    seed: int,
) -> list[str]:
    """Call every function of `cases` (name -> function and maker of valid keyword arguments) and list the faults.

    A third of the calls are valid ones in two layouts, which have to agree; in the others arguments are spoilt.
    """
    faults = []
    names = list(cases)
    for number in range(calls):
        name = names[number % len(names)]
        function, maker = cases[name]
        generator = np.random.default_rng([seed, number])
        arguments = maker(generator)
        try:
            if number // len(names) % 3 == 0:
                kind, plain = outcome(function, **arguments)
                other, again = outcome(function, **{key: laid_out(each, generator) for key, each in arguments.items()})
                if kind != other:
                    raise CallError(
                        f"{kind} plainly, {other} in another layout: {again if other == 'refused' else plain}"
                    )
                if kind == "result":
                    assert_alike(plain, again)
                continue
            for key in generator.choice(list(arguments), size=generator.integers(1, 3)):
                arguments[key] = spoilt(arguments[key], generator)
            outcome(function, **arguments)
        except AssertionError as fault:
            shown = {key: _shown(each) for key, each in arguments.items()}
            faults.append(f"{name} [{seed}, {number}]: {fault or 'results differ'} ({shown})"[:700])
    return faults


def _shown(value: Any) -> str:
    array = f"{value.dtype}{tuple(value.shape)} " if hasattr(value, "dtype") else ""
    return array + " ".join(repr(value).split())[:80]
