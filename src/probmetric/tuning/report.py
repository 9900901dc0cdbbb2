"""Files of a search: trials.csv, history.png, table.md, a methods file with the chosen settings, and its studies."""

from __future__ import annotations

import copy
import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from probmetric.config import ConfigError, Experiment, Method, naming, parse
from probmetric.io import atomic_path, read_yaml, write_text, write_yaml
from probmetric.planning.expansion import PlannedExperiment, expand
from probmetric.planning.experiments import EXPERIMENTS, METHODS
from probmetric.planning.workflow import check_archives, check_report
from probmetric.tuning.search import Trial

if TYPE_CHECKING:
    from probmetric.tuning.search import Search

REPORTS = Path("reports/tuning")
TUNED = " (tuned)"


def write_progress(search: Search, name: str, *, reports: Path = REPORTS) -> list[Path]:
    """Write trials.csv, table.md and history.png of the trials so far; returns their paths."""
    folder = reports / name
    _write_trials(search, folder / "trials.csv")
    write_text(folder / "table.md", table(search))
    _draw_history(search, folder / "history.png")
    return [folder / "trials.csv", folder / "table.md", folder / "history.png"]


def write_methods(search: Search, name: str, *, folder: Path = METHODS) -> Path:
    """Write the methods file of a finished search (`tuned_methods`), which an experiment can name."""
    path = folder / f"tuned-{name}.yaml"
    write_yaml(path, tuned_methods(search, name))
    return path


def write_studies(search: Search, name: str, *, folder: Path = EXPERIMENTS) -> list[Path]:
    """Write the experiments of a finished search."""
    specs = {folder / f"{study}.yaml": content for study, content in studies(search, name).items()}
    for path, content in specs.items():
        write_yaml(path, content)
    return list(specs)


def studies(search: Search, name: str) -> dict[str, dict[str, Any]]:
    """Return the experiments of a search by name; method names replace the words `tuned` and `untuned`."""
    tuned = [*search.spec.methods, *search.spec.posteriors]
    names = {"untuned": tuned, "tuned": [_name(search, method, name) for method in tuned]}
    specs = {}
    for study, content in search.spec.studies.items():
        blocks = [
            grid | {"methods": [specs for method in grid["methods"] for specs in names.get(method, [method])]}
            for grid in content["runs"]
        ]
        specs[study] = content | {"runs": blocks}
    return specs


def tuned_methods(search: Search, name: str) -> dict[str, Any]:
    """Return the methods with the chosen settings by name, as a methods file defines them."""
    return _defined(search, name, {method: best for method in search.spec.methods if (best := search.best(method))})


def _defined(search: Search, name: str, chosen: Mapping[str, Trial]) -> dict[str, Any]:
    """Return definitions by name: the methods with the settings of the `chosen` trials, and the posteriors on them."""
    methods = {_name(search, method, name): _tuned(search, method, trial) for method, trial in chosen.items()}
    for method in search.spec.posteriors:
        base = _name(search, str(search.methods[method].base), name)
        if base in methods:
            methods[_name(search, method, name)] = _posterior(search, method, base)
    return methods


def check_names(search: Search, name: str, *, folder: Path = METHODS) -> None:
    """Refuse tuned names that another file defines, because after hours of training they could not be planned.

    Raises:
        ConfigError: a name is taken.
    """
    path = folder / f"tuned-{name}.yaml"
    written = read_yaml(path) if path.is_file() else {}
    made = [_name(search, method, name) for method in (*search.spec.methods, *search.spec.posteriors)]
    taken = [each for each in made if each in search.methods and each not in written]
    if taken:
        raise ConfigError(
            f"named: {search.spec.named!r} gives {taken[0]!r}, a method that is defined already; write another, such "
            f"as '{{method}}-{name}'."
        )


def check_studies(search: Search, name: str) -> None:
    """Refuse studies that could not be planned after the search; here tuned methods have their untuned settings.

    Raises:
        ConfigError: the study is wrong as an experiment; the message says what.
    """
    made = _defined(search, name, dict.fromkeys(search.spec.methods, Trial("", 0, {}, (), None)))
    methods = {**search.methods, **{each: parse(Method, content, each) for each, content in made.items()}}
    for study, content in studies(search, name).items():
        with naming(f"studies.{study}"):
            spec = parse(Experiment, content, "its experiment")
            runs = expand(search.params, {**methods, **spec.methods}, spec)
            check_report(search.params, study, PlannedExperiment(spec, tuple(runs), {}))
            check_archives(search.params, {data for run in runs for data in run.data})


def _name(search: Search, method: str, name: str) -> str:
    return search.spec.named.format(method=method, search=name)


def _posterior(search: Search, method: str, base: str) -> dict[str, Any]:
    """Return the definition of a method that does not train itself, on the tuned version of its base."""
    definition = search.methods[method].model_dump(mode="json", exclude_defaults=True)
    return definition | {"base": base, "label": _tuned_label(search, method)}


def _tuned(search: Search, method: str, best: Trial) -> dict[str, Any]:
    return {
        "like": method,
        "label": _tuned_label(search, method),
        "change": _changed(search.shared_settings(method), best.values),
        "budget": search.methods[method].budget + search.spec.budget,
        "tuned_on": search.spec.dataset,
    }


def _changed(shared: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return `shared` settings by dotted key, updated by `chosen`; `learning_rates.trunk` updates `learning_rates`."""
    settings = copy.deepcopy(dict(shared))
    for key, value in chosen.items():
        parent, _, entry = key.rpartition(".")
        if isinstance(settings.get(parent), dict):
            settings[parent][entry] = value
        else:
            settings[key] = value
    return settings


def table(search: Search) -> str:
    """Return a Markdown table: per method the budget, the validation metric before and after, the chosen settings."""
    seconds = min((sum(trial.seconds for trial in trials) for trials in search.trials.values() if trials), default=0.0)
    lines = [
        f"# {search.spec.title}",
        "",
        "Validation metric, not test. The first trial has the method's own settings where they lie in its ranges.",
        "",
        f"Equal seconds: the best of the first trials that together took no longer than all of the cheapest method's "
        f"({seconds:.0f} s).",
        "",
        "| method | budget | failed | first trial | best | at trial | equal seconds | median of the trials "
        "| training, s | settings |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(search, method, trials, seconds) for method, trials in search.trials.items()]
    return "\n".join([*lines, ""])


def best_within(trials: Sequence[Trial], seconds: float) -> float | None:
    """Return the best validation metric of the first trials that together took at most `seconds`.

    The first trial always counts. The metric is None if all these trials failed.
    """
    spent = np.cumsum([trial.seconds for trial in trials])
    within = [trial for trial, total in zip(trials, spent, strict=True) if total <= seconds * (1 + 1e-9)] or trials[:1]
    return max((trial.objective for trial in within if trial.objective is not None), default=None)


def _row(search: Search, method: str, trials: Sequence[Trial], seconds: float) -> str:
    best = search.best(method)
    failed = sum(trial.objective is None for trial in trials)
    cells = [_label(search, method), str(sum(len(trial.runs) for trial in trials)), str(failed)]
    cells.append(_number(trials[0].objective if trials else None))
    reached = [trial.objective for trial in trials if trial.objective is not None]
    spent = f"{sum(trial.seconds for trial in trials):.0f}"
    if best is None:
        cells += ["failed", "", "", "", spent, "none"]
    else:
        settings = ", ".join(f"{key}={value}" for key, value in best.values.items())
        cells += [_number(best.objective), str(best.number + 1), _number(best_within(trials, seconds))]
        cells += [_number(median(reached)), spent, settings]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4f}"


def _write_trials(search: Search, path: Path) -> None:
    keys = sorted({key for ranges in search.ranges.values() for key in ranges})
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "trial", "objective", "seconds", *keys, "runs"])
        for trial in itertools.chain.from_iterable(search.trials.values()):
            values: Mapping[str, Any] = trial.values
            row = [trial.method, trial.number + 1, trial.objective, round(trial.seconds, 2)]
            writer.writerow([*row, *map(values.get, keys), " ".join(trial.runs)])


def _draw_history(search: Search, path: Path) -> None:
    """Draw the best validation metric so far against training runs spent, one line per method."""
    from matplotlib.ticker import MaxNLocator

    from probmetric.reporting.figures import _style

    with _style.style():
        named = [_label(search, method) for method in search.trials]
        figure, axes = _style.grid(1, 1, panel_height=3.0, named=named)
        axis = axes[0][0]
        looks = _style.looks(search.trials)
        for method, trials in search.trials.items():
            values = [trial.objective if trial.objective is not None else float("nan") for trial in trials]
            spent = [(place + 1) * len(search.spec.runs) for place in range(len(values))]
            look = looks[method]
            axis.plot(spent, values, "o", color=look.colour, markersize=3, alpha=0.5)
            best = np.fmax.accumulate(values)  # NaN only before the first success
            axis.plot(spent, best, color=look.colour, linestyle=look.dash, label=_label(search, method))
        axis.set(xlabel="training runs spent", ylabel="validation metric", title=search.spec.title)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        _style.legend(figure, *axis.get_legend_handles_labels())
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=_style.DPI)


def _tuned_label(search: Search, method: str) -> str:
    return f"{_label(search, method).removesuffix(TUNED)}{TUNED}"


def _label(search: Search, method: str) -> str:
    return search.methods[method].label or method
