"""Errors with messages for users."""

import difflib
import re
import urllib.parse
from collections.abc import Iterable

_LISTED, _SHOWN = 50, 8  # names in a message: all of so many, else the nearest


class ProbMetricError(Exception):
    """An error that a user can mend: the message says what is wrong, where, and the fix. Commands print it alone."""


class ServingError(ProbMetricError, ValueError):
    """A model, gallery or image cannot be used; the message says what to change."""


OUT_OF_MEMORY = (
    "out of memory; give the job more (mem_mb, or a larger device) or make training.batch_size smaller, "
    "and run it again."
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocator of Python, PyTorch or CUDA raised `error`; on the CPU PyTorch has no class for it."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(sign in str(error) for sign in ("can't allocate memory", "out of memory"))
    )


# Matches a password in user:password@host, with or without a scheme, even if it holds "/" (a port is no password); a
# token alone before a web host; a parameter with a secret.
_SECRETS = re.compile(
    r"(?:^|[\"'\[({=,])[^/@\s:\"'\[({=,]+:(?!/)[^@\s]*@\w|"
    r"(?:https?:/?|//)[^/@\s:]*:(?!\d+(?:/|$))[^@]*@|https?://[^/@\s]+@"
    r"|(?:[?&;#]|odbc_connect=)[^=&]*(?:pass|pwd|secret|token|key|auth|sig|cred|jwt)[^=&]*=[^&\s]",
    re.IGNORECASE,
)


def holds_secret(address: str) -> bool:
    """Return whether an address holds a password or token, in plain or with %-signs."""
    return any(_SECRETS.search(text) for text in (address, urllib.parse.unquote_plus(address)))


def without_secrets(text: str) -> str:
    """Return the text with *** in place of addresses that hold a password or token."""
    return re.sub(r"\S+", lambda word: "***" if holds_secret(word[0]) else word[0], text)


def harmless(text: str) -> str:
    """Return the text for a terminal: without passwords, and without control characters (from names of files)."""
    plain = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: match[0].encode("unicode_escape").decode(), text)
    return without_secrets(plain)


def nearest(value: str, allowed: Iterable[str]) -> str:
    """Return the phrase `did you mean 'x'? Allowed: a, b, c.`; of many names it lists only the nearest."""
    names = sorted(allowed)
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    if len(names) > _LISTED:
        shown = difflib.get_close_matches(str(value), names, n=_SHOWN, cutoff=0.0)
        return f"{hint}Nearest of {len(names)}: {', '.join(shown)}."
    return f"{hint}Allowed: {', '.join(names) or '(nothing)'}."
