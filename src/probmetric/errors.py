"""Errors meant for people."""

import re


class ProbMetricError(Exception):
    """Something a person can mend: the message says what is wrong, where, and the fix. Commands print it alone."""


class ServingError(ProbMetricError, ValueError):
    """A model, gallery or image cannot be used; the message says what to change."""


OUT_OF_MEMORY = (
    "out of memory; give the job more (mem_mb, or a larger device) or make training.batch_size smaller, "
    "and run it again."
)


def is_out_of_memory(error: Exception) -> bool:
    """Whether Python's, PyTorch's or CUDA's allocator raised `error`; PyTorch's for the CPU has no class of its own."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(sign in str(error) for sign in ("can't allocate memory", "out of memory"))
    )


def harmless(text: str) -> str:
    """Return a text without control characters: names of files must not steer the terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: match[0].encode("unicode_escape").decode(), text)
