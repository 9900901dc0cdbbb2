"""No key, password or token lies in a file of the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECRETS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\n",
    "AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})\b",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{34}\b",
    "Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{20,}\b",
    "Google key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "PyPI token": r"\bpypi-[A-Za-z0-9_-]{50,}\b",
    "JSON web token": r"\beyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{15,}\b",
    "password in an address": r"://[^\s/:@\"'{}$<>]+:[^\s/@\"'{}$<>]{4,}@[\w.-]+",
    "password in words": r"(?i)\b(?:password|passwd|secret|api_key|token)\b\s*[:=]\s*[\"'][^\"'\s{}$<>]{8,}[\"']",
}


def found_in(text: str) -> list[str]:
    return [kind for kind, pattern in SECRETS.items() if re.search(pattern, text)]


def test_tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=False, capture_output=True)
    if listed.returncode:
        pytest.skip("not a Git checkout")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    readable = [path for path in paths if path.is_file() and path.stat().st_size < 5_000_000 and path != Path(__file__)]
    assert len(readable) > 100
    hits = {str(path): kinds for path in readable if (kinds := found_in(path.read_text(errors="replace")))}
    assert hits == {}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("private key", "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIE"),
        ("AWS key", "AKIA" + "ABCDEFGHIJKLMNOP"),
        ("GitHub token", "ghp_" + "a1B2" * 9),
        ("Hugging Face token", "hf_" + "aB" * 17),
        ("password in an address", "https://me:" + "hunter22@example.org/x"),
        ("password in words", "password = " + '"hunter2hunter2"'),
    ],
)
def test_the_search_finds(kind, text):
    assert kind in found_in(text)
