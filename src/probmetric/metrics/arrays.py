"""Read and check the arrays that callers pass: NumPy arrays, sequences and torch tensors.

This module never imports torch; it recognises a tensor by its `detach` method. Every error message names the argument,
the first wrong position and the remedy.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNIT_TOLERANCE = 1e-4
SMALLEST_NORM, LARGEST_NORM = 1e-12, 1e15
MISSING = ("", "nan", "NaN", "<NA>", "None")  # how programs write a missing value
NORM_BLOCK = 1 << 16  # values: half a megabyte of float64, which fits a cache


def is_cuda(values: Any) -> bool:
    """Say whether `values` is a torch tensor on a CUDA device."""
    return hasattr(values, "detach") and bool(getattr(values, "is_cuda", False))


def to_numpy(values: Any) -> Array:
    """Return `values` as a NumPy array; a torch tensor on the CPU with a NumPy dtype shares its memory."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        return np.asarray(values.numpy())
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{values!s:.80} is no array: its rows have several lengths.") from None


def matrix(values: Any, name: str) -> Floats:
    """Return `values` as a finite float32 (N,M) matrix with N, M >= 1; float64 input is rounded to float32."""
    array = to_numpy(values)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}; expected (N, M) with N and M at least 1.")
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} has dtype {array.dtype}; expected floating point numbers.")
    with np.errstate(over="ignore"):  # a number that float32 cannot hold becomes infinite, which check_finite reports
        array = np.ascontiguousarray(array, dtype=np.float32)
    check_finite(array, name)
    return array


def check_finite(array: Array, name: str) -> None:
    """Raise a ValueError that names the first row (or entry) of `array` that is NaN or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(array, dtype=np.float64)):
            return
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        where = "row" if array.ndim > 1 else "entry"
        raise ValueError(
            f"{name}: {where} {bad[0][0]} is not finite ({array[tuple(bad[0])]}); {len(np.unique(bad[:, 0]))} "
            f"of {len(array)} are affected. Drop them or mend the model that made them."
        )


def products(rows: Array, others: Array) -> Array:
    """Return the dot products (A,B) of finite `rows` (A,M) and `others` (B,M), without NumPy's warnings.

    OpenBLAS computes with whole registers. Garbage in their unused lanes does not reach the result, but sometimes makes
    NumPy warn of an "invalid value encountered in matmul" although all rows are finite (numpy#24067 and others).
    """
    with np.errstate(all="ignore"):
        return rows @ others.T


def check_unit_rows(array: Floats, name: str) -> None:
    """Raise a ValueError that names the first row of `array` (N,M) whose norm is neither 1 nor 0 (no direction)."""
    norms = row_norms(array)
    bad = np.flatnonzero((np.abs(norms - 1.0) > UNIT_TOLERANCE) & (norms > 0.0))
    if bad.size:
        raise ValueError(
            f"{name}: row {bad[0]} has norm {norms[bad[0]]:.6g} and {bad.size} of {len(array)} rows are not unit "
            f"vectors (tolerance {UNIT_TOLERANCE:g}). Divide each row by its norm, pass normalize=True, or choose "
            "another distance."
        )


def row_norms(array: Array) -> Doubles:
    """Return the Euclidean norm of each row of `array` (N,M), summed in float64 without a float64 copy of the array."""
    norms = np.empty(len(array))
    rows = max(1, NORM_BLOCK // max(array.shape[1], 1))
    for start in range(0, len(array), rows):
        block = array[start : start + rows].astype(np.float64)
        norms[start : start + rows] = np.sqrt(np.einsum("ij,ij->i", block, block))
    return norms


def normalized(array: Floats) -> Floats:
    """Return rows of `array` (N,M) divided by their norms (float64 division, float32 result); a zero row stays zero."""
    norms = row_norms(array)
    unit = np.empty(array.shape, dtype=np.float32)
    return np.divide(array, np.where(norms > 0.0, norms, 1.0)[:, None], out=unit, casting="same_kind")


def labels_of(values: Any, count: int, name: str, of: str, *, least: int = 0) -> Ints:
    """Return `values` as int64 labels (N,) of `least` or more, one for each of the `count` rows of argument `of`."""
    array = to_numpy(values)
    if array.ndim != 1 or len(array) != count:
        raise ValueError(f"{name} has shape {array.shape}; expected ({count},), one label for each row of {of}.")
    if array.dtype.kind not in "iu":
        advice = "Number the classes: np.unique(labels, return_inverse=True)[1]."
        raise TypeError(f"{name} has dtype {array.dtype}; expected integers. {advice}")
    array = array.astype(np.int64)
    negative = np.flatnonzero(array < least)
    if negative.size:
        raise ValueError(
            f"{name}: entry {negative[0]} is {array[negative[0]]}; labels are integers from {least} upwards. "
            "Remove unlabelled images first."
        )
    return array


def names_of(values: Any, name: str, *, count: int | None = None) -> tuple[Array, Ints]:
    """Return the distinct names in `values` (N,), text or numbers, and the position (N,) of each entry among them."""
    array = to_numpy(values)
    for kind in (str, int):  # a column of pandas
        if array.dtype.kind == "O" and all(isinstance(each, kind) for each in array.flat):
            array = array.astype(kind)
    if array.ndim != 1 or len(array) != (len(array) if count is None else count):
        expected = f"({'N' if count is None else count},), one for each row"
        raise ValueError(f"{name} has shape {array.shape}; expected {expected}.")
    if array.dtype.kind not in "iufbUSMm":
        kinds = {type(each).__name__ for each in array.flat} if array.dtype.kind == "O" else {str(array.dtype)}
        raise ValueError(
            f"{name} holds values of {', '.join(sorted(kinds))}; expected all integers or all names, none missing."
        )
    if array.dtype.kind == "f":
        check_finite(array, name)
    classes, codes = np.unique(array, return_inverse=True)
    return classes, codes.astype(np.int64)


def class_names_of(values: Iterable[Any]) -> list[str]:
    """Return classes as names: the result of `text_of`, with composed Unicode and without space around it."""
    return [unicodedata.normalize("NFC", text_of(value)).strip() for value in values]


def text_of(value: Any) -> str:
    """Return an entry as text: "" for a `MISSING` value (also None, NaN, pandas' NA), 3.0 as 3, bytes decoded.

    An entry of a tensor, or a row of one entry, is taken as its number.
    """
    value = value.item() if isinstance(value, np.ndarray) or hasattr(value, "detach") else value
    value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    text = str(int(value)) if whole else str(value)
    return "" if text.strip() in MISSING else text


def check_mapping(values: Any, name: str, *needed: str) -> None:
    """Raise a ValueError if argument `name` is not a mapping, or lacks one of the keys `needed`."""
    missing = [key for key in needed if not isinstance(values, Mapping) or key not in values]
    if missing or not isinstance(values, Mapping):
        has = list(values) if isinstance(values, Mapping) else type(values).__name__
        raise ValueError(f"{name} is or has {has!s:.200}; expected a dict{' with ' * bool(needed)}{', '.join(needed)}.")


def generator(seed: Any) -> np.random.Generator:
    """Return NumPy's random generator for a seed, an integer from 0."""
    check_count(seed, "seed", least=0)
    return np.random.default_rng(seed)


def check_choice(value: Any, name: str, allowed: Sequence[Any]) -> None:
    """Raise a ValueError if argument `name` is not one of the `allowed` values."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}.")


def check_number(value: Any, name: str) -> None:
    """Raise a TypeError if argument `name` is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} is {value!r:.80}; expected a number.")


def check_count(value: Any, name: str, *, least: int = 1, most: float = np.inf) -> None:
    """Raise a ValueError if argument `name` is not an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        limits = f"at least {least}" if most == np.inf else f"{least} to {most}"
        raise ValueError(f"{name} is {value!s:.80}; expected {limits}, an integer.")


def vector(values: Any, name: str, *, count: int | None = None) -> Doubles:
    """Return `values` as a finite float64 vector, of length `count` where that is given, otherwise of length >= 1."""
    array = to_numpy(values)
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise ValueError(f"{name} has shape {array.shape}, dtype {array.dtype}; expected a vector of numbers.")
    if count is not None and len(array) != count:
        raise ValueError(f"{name} has {len(array)} entries, expected {count}: the arguments must be aligned.")
    if len(array) == 0:
        raise ValueError(f"{name} is empty; at least one entry is needed.")
    array = array.astype(np.float64)
    check_finite(array, name)
    return array


def booleans(values: Any, name: str, *, count: int | None = None) -> Doubles:
    """Return `values` as float64 zeros and ones (N,)."""
    array = vector(values, name, count=count)
    wrong = np.flatnonzero((array != 0.0) & (array != 1.0))
    if wrong.size:
        raise ValueError(f"{name}: entry {wrong[0]} is {array[wrong[0]]}; expected only 0 (wrong) and 1 (right).")
    return array


def numbers(values: Any, name: str, *shapes: str) -> Doubles:
    """Return `values` as finite float64 numbers of one of the `shapes`, such as "(N, C)"; no axis may be empty."""
    array = to_numpy(values)
    axes = [shape.count(",") + 1 for shape in shapes]
    if array.ndim not in axes or 0 in array.shape or array.dtype.kind not in "fiub":
        raise ValueError(
            f"{name} has shape {array.shape}; expected {' or '.join(shapes)}, numbers, at least 1 along every axis "
            f"(dtype is {array.dtype})."
        )
    array = array.astype(np.float64)
    check_finite(array, name)
    return array


def probability_matrix(values: Any, name: str = "probabilities") -> Doubles:
    """Return `values` as float64 (N,C) rows that are non-negative and sum to 1 within 1e-3."""
    array = numbers(values, name, "(N, C)")
    totals = array.sum(axis=1)
    bad = np.flatnonzero((np.abs(totals - 1.0) > 1e-3) | (array.min(axis=1) < 0.0))
    if bad.size:
        raise ValueError(
            f"{name}: row {bad[0]} sums to {totals[bad[0]]:.6g} with minimum {array[bad[0]].min():.6g}; "
            "expected non-negative rows that sum to 1. Apply a softmax to logits first."
        )
    return array


def check_inside_ball(array: Floats, name: str) -> None:
    """Raise a ValueError that names the first row of `array` (N,M) that is not inside the open unit ball."""
    norms = row_norms(array)
    bad = np.flatnonzero(norms >= 1.0 - 1e-6)
    if bad.size:
        raise ValueError(
            f"{name}: row {bad[0]} has norm {norms[bad[0]]:.8g}; the Poincaré distance is defined inside the unit ball "
            "(norm < 1 - 1e-6). Project the rows into the ball first."
        )


def check_scale(largest: float, name: str) -> None:
    """Raise a ValueError if squares of the `largest` row norm leave the range of float32 (all zero is fine)."""
    if largest and not SMALLEST_NORM <= largest <= LARGEST_NORM:
        raise ValueError(
            f"{name}: the largest row norm is {largest:.3g}; expected {SMALLEST_NORM:g} to {LARGEST_NORM:g}. Multiply "
            "all rows by a constant; Euclidean ranks do not change."
        )
