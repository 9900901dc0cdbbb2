"""What mkdocs asks while it builds the site: pages that are not below docs/, and links that lead out of it.

    index.md                       README.md
    CONTRIBUTING.md, CHANGELOG.md, SECURITY.md
    reference/library/<package>.md public names, from their docstrings
    reference/components/<kind>.md every component with its options, from the catalogue

A link to a file that is no page (source, results, reports) becomes its name: the site stands alone.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

from probmetric.cli.listing import LISTED, listing
from probmetric.registry import REQUIRED, registry_of

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {"index.md": "README.md"} | {name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")}
PACKAGES = {
    "serving": "Models and galleries",
    "directional": "Directional statistics",
    "losses": "Losses",
    "uncertainty": "Uncertainties",
    "models": "Backbones",
    "data": "Data",
    "retrieval": "Search and retrieval metrics",
    "metrics": "Metrics",
    "trust": "Trust in answers",
    "testing": "Contract tests",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config) -> Files:
    """Add the pages that are not below docs/."""
    pages = {name: (ROOT / source).read_text(encoding="utf-8") for name, source in BESIDE.items()}
    pages["index.md"] = pages["index.md"].replace("](docs/", "](")
    pages |= {f"reference/library/{name}.md": library_page(name, title) for name, title in PACKAGES.items()}
    pages |= {f"reference/components/{kinds}.md": component_page(kinds) for kinds in LISTED}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Links to what is no page of the site become plain names."""
    here = posixpath.dirname(page.file.src_uri)

    def plain(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path = target.partition("#")[0]
        if not path or ":" in path or files.get_file_from_path(posixpath.normpath(posixpath.join(here, path))):
            return match.group(0)
        return "" if image else f"{text} (`{path.replace('../', '')}`)"

    return LINK.sub(plain, markdown)


def library_page(name: str, title: str) -> str:
    """Public names of a package."""
    return f"# {title}\n\n::: probmetric.{name}\n"


def component_page(kinds: str) -> str:
    """All components of a kind: options, what they take, their defaults."""
    registry, title = registry_of(LISTED[kinds]), kinds.capitalize()
    head = f"# {title}\n\nGenerated from the catalogue; `probmetric list {kinds}` prints the same.\n"
    if kinds == "metrics":
        return f"{head}\n```text\n{listing(kinds)}\n```\n"
    return "\n".join([head, *(component(registry.entry(name), name) for name in registry.names())])


def component(entry, name: str) -> str:
    """One component."""
    rows = [f"| `{option.name}` | `{default(option)}` | {cell(option.allowed)} |" for option in entry.options.values()]
    table = ["", "| option | default | takes |", "| --- | --- | --- |", *rows] if rows else []
    return "\n".join([f"\n## {name}\n", entry.doc, "", f"Defined in `{entry.module}`.", *table, ""])


def default(option) -> str:
    """What the option is where nothing is said."""
    return "required" if option.default is REQUIRED else repr(option.default)


def cell(text: object) -> str:
    """Text that may stand in a table."""
    return str(text).replace("|", "\\|")
