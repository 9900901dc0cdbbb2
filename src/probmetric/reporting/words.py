"""Names of data and overrides of runs, and lists of names, as readers expect them; Markdown, LaTeX, templates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric.runs.names import LabelNoise, RunKey, split_data_name

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
_PHRASES = {
    "dim": "{} dimensions",
    "training.epochs": "{} epochs",
    "training.selection": "selection {}",
    "uncertainty.apart": "members {} seeds apart",
    "uncertainty.members": "{} members",
    "uncertainty.samples": "{} samples",
}
_SWITCH = {"true": "on", "false": "off", "null": "none"}


def templates() -> Environment:
    """Return the package's templates; text put into HTML is escaped, and an undefined name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    pages = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["markdown"] = escape_markdown
    return pages


def group_title(data: str) -> str:
    """Return `glyphs, 20 % label noise` for `glyphs+noise0.2`, `glyphs, 20 % nearest-class ...` for `+nearest0.2`."""
    dataset, label_noise = split_data_name(data)
    if not label_noise:
        return dataset
    noise = LabelNoise.parse(label_noise)
    return f"{dataset}, {100 * noise.rate:g} % {noise_words(noise)}"


def noise_words(noise: LabelNoise) -> str:
    """Return `nearest-class label noise, seed 1`; uniform noise is `label noise`, and a seed of 0 is left out."""
    kind = "nearest-class label noise" if noise.kind == "nearest" else "label noise"
    return f"{kind}, seed {noise.seed}" if noise.seed else kind


def repetition(key: RunKey) -> str:
    """Return which of the runs of its method it is: `seed 0`, or `split 1, seed 0` of another split of the classes."""
    return f"split {key.class_split}, seed {key.seed}" if key.class_split else f"seed {key.seed}"


def plus_minus(half_width: float | None, digits: int) -> str:
    """Return words such as ` ± 0.004`, ` ± <0.001` if it rounds to 0, and an empty text if it is unknown."""
    if half_width is None or math.isnan(half_width):
        return ""
    text = f"{half_width:.{digits}f}"
    return f" ± <{10.0**-digits:.{digits}f}" if float(text) == 0 else f" ± {text}"


def value_words(value: Any) -> str:
    """Return a setting's value as a configuration file writes it; an empty text for None."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def component_words(name: str, options: Mapping[str, Any]) -> str:
    """Return `timm (tag tf_efficientnet_lite0.in1k, head none)` for a component and its options."""
    words = ", ".join(f"{option.replace('_', ' ')} {value_words(value)}" for option, value in options.items())
    return f"{name} ({words})" if words else name


def count_words(number: float) -> str:
    """Return `4`; for a mean between 0 and 1, `fewer than 1`."""
    return "fewer than 1" if 0 < number < 1 else f"{number:.0f}"


def chance_words(probability: float) -> str:
    """Return `0.87`; in place of 1.00 and 0.00 `>0.99` and `<0.01`, since no answer is certain."""
    text = f"{probability:.2f}"
    return {"1.00": ">0.99", "0.00": "<0.01"}.get(text, text)


def option_words(option: str) -> str:
    """Return `delta repulsion` for `loss.delta_repulsion`; the method already tells the component."""
    return option.rpartition(".")[2].replace("_", " ")


def override_words(override: str) -> str:
    """Return `members 5 seeds apart` for `uncertainty.apart=5`, `learn scale off` for `loss.learn_scale=false`."""
    option, _, value = override.partition("=")
    words = _SWITCH.get(value, value.replace("_", " "))
    phrase = _PHRASES.get(option)
    return phrase.format(words) if phrase else f"{option_words(option)} {words}".rstrip()


def listed(names: Sequence[str], most: int = 0) -> str:
    """Return `a`, `a and b`, `a, b and c`; of more than `most` + 1 names, the first `most` and the number of others."""
    if most and len(names) > most + 1:
        return f"{', '.join(names[:most])} and {len(names) - most} others"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def one_line(text: str) -> str:
    """Return `text` with every kind of line break as a space."""
    return " ".join(text.splitlines())


def escape_markdown(text: str) -> str:
    """Return `text` on one line, with Markdown's markup escaped."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", one_line(text))


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    "×": r"$\times$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "▼": r"$\bigtriangledown$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
} | {character: f"\\{character}" for character in "&%$#_{}"}


def escape_latex(text: str) -> str:
    """Return `text` on one line, with LaTeX's commands escaped."""
    return "".join(_TEX.get(character, character) for character in one_line(text))
