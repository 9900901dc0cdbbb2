"""What mkdocs asks while it builds the site: pages that are not below docs/, and links that lead out of it.

    index.md                       README.md
    CONTRIBUTING.md, CHANGELOG.md, SECURITY.md
    reference/library/<package>.md public names, from their docstrings
    reference/components/<kind>.md every component with its options, from the catalogue
    reference/commands.md          every command's `--help`
    examples/*.png                 what the Python blocks of an example draw
    llms.txt                       every page with its first sentence, for programs that read documentation

A link to a file that is no page (source, results, reports) becomes its name: the site stands alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import posixpath
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from mkdocs.structure.files import File, Files

from probmetric.cli.commands import declare
from probmetric.cli.runs import LISTED, listing
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
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
DRAWN: dict[str, str] = {}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config) -> Files:
    """Add the pages that are not below docs/."""
    pages = {name: (ROOT / source).read_text(encoding="utf-8") for name, source in BESIDE.items()}
    pages["index.md"] = pages["index.md"].replace("](docs/", "](")
    pages |= {f"reference/library/{name}.md": library_page(name, title) for name, title in PACKAGES.items()}
    pages |= {f"reference/components/{kinds}.md": component_page(kinds) for kinds in LISTED}
    pages["reference/commands.md"] = commands_page()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for example in [file for file in files if file.src_uri.startswith("examples/")]:
        text, pictures = drawn(example.content_string, posixpath.splitext(example.src_uri)[0])
        DRAWN[example.src_uri] = text
        for name, picture in pictures.items():
            files.append(File.generated(config, name, content=picture))
    files.append(File.generated(config, "llms.txt", content=contents(files)))
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Links to what is no page of the site become plain names."""
    here, markdown = posixpath.dirname(page.file.src_uri), DRAWN.get(page.file.src_uri, markdown)

    def plain(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path = target.partition("#")[0]
        if not path or ":" in path or files.get_file_from_path(posixpath.normpath(posixpath.join(here, path))):
            return match.group(0)
        return "" if image else f"{text} (`{path.replace('../', '')}`)"

    return LINK.sub(plain, markdown)


def drawn(markdown: str, name: str) -> tuple[str, dict[str, bytes]]:
    """Run the Python blocks of an example that draws, and put its pictures below them; not where they lie in docs/."""
    if "import matplotlib" not in markdown or "](../images/" in markdown:
        return markdown, {}
    names: dict = {}
    pictures: dict[str, bytes] = {}

    def picture(match: re.Match[str]) -> str:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(match.group(1), name, "exec"), names)
        links = []
        for number in plt.get_fignums():
            file = io.BytesIO()
            plt.figure(number).savefig(file, dpi=150)
            pictures[f"{name}-{len(pictures)}.png"] = file.getvalue()
            links.append(f"\n![What the block draws]({posixpath.basename(list(pictures)[-1])})\n")
        plt.close("all")
        return match.group(0) + "".join(links)

    return BLOCK.sub(picture, markdown), pictures


def contents(files: Files) -> str:
    """Every page: title, address, first sentence."""
    lines = [
        "# ProbMetric",
        "",
        "> Train, compare and use probabilistic image embeddings; certify any embedding model.",
        "",
    ]
    for page in sorted(files.documentation_pages(), key=lambda file: file.src_uri):
        title, _, text = re.sub(r"^```.*?^```$", "", page.content_string, flags=re.M | re.S).partition("\n")
        prose = (line for line in text.splitlines() if line and line[0].isalpha())
        sentence = LINK.sub(r"\2", re.split(r"(?<=[.?])\s", " ".join(prose))[0])
        lines.append(f"- [{title.strip('# ')}]({page.src_uri}): {sentence}")
    return "\n".join([*lines, ""])


def commands_page() -> str:
    """Every command with its options, as `--help` prints them."""
    commands = argparse.ArgumentParser(prog="probmetric").add_subparsers()
    declare(commands)
    for command in commands.choices.values():
        command.formatter_class = functools.partial(argparse.HelpFormatter, width=100)
    sections = [f"## {name}\n\n```text\n{command.format_help()}```\n" for name, command in commands.choices.items()]
    return "\n".join(["# Commands\n\nGenerated; `probmetric COMMAND --help` prints the same.\n", *sections])


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
