"""A hyper-parameter search: which methods, on what, with what budget."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, model_validator

from probmetric.config._components import Rate, Seed, Strict


class SearchRange(Strict):
    """Where the search looks for one setting: an interval, or a list of choices."""

    low: float | None = None
    high: float | None = None
    log: bool = Field(False, description="search the logarithm; for rates, scales and weights")
    integer: bool = False
    choices: tuple[float | int | str | bool, ...] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> SearchRange:
        if (self.low is not None and self.high is not None) == bool(self.choices):
            raise ValueError("give either `low` and `high`, or `choices`")
        if self.choices:
            return self
        low, high = self.interval
        if not low < high:
            raise ValueError(f"low {low:g} must be below high {high:g}")
        if self.log and low <= 0:
            raise ValueError(f"a logarithmic range starts above 0, not at {low:g}")
        return self

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high) of a range that is no list of choices."""
        if self.low is None or self.high is None:
            raise ValueError("a list of choices has no interval")
        return self.low, self.high

    @property
    def edges(self) -> tuple[float | int | str | bool, ...]:
        """Values every other value lies between, or all choices."""
        if self.choices:
            return self.choices
        return tuple(int(edge) for edge in self.interval) if self.integer else self.interval


class Halving(Strict):
    """Successive halving (Jamieson and Talwalkar 2016) with two rungs: all trials briefly, the best of them in full."""

    epochs: int = Field(ge=1, description="`training.epochs` of every trial; less than what is trained in full")
    keep: int = Field(
        ge=2, description="trials of a method that are trained in full: the first, with its own settings, and the best"
    )


class Tuning(Strict):
    """A search that gives every method the same number of training runs, judged on validation data only."""

    title: str
    description: str = ""
    dataset: str
    noise: Rate = 0.0
    methods: tuple[str, ...] = Field(min_length=1)
    trials: int = Field(16, ge=1, description="settings tried per method; every method has the same budget")
    startup_trials: int = Field(6, ge=1, description="trials drawn at random before the search learns from results")
    batch: int = Field(4, ge=1, description="trials of a method chosen, and trained, at once")
    seeds: tuple[Seed, ...] = Field((0,), min_length=1, description="runs per trial; their mean is the objective")
    search_seed: Seed = 0
    halving: Halving | None = Field(None, description="few epochs for every trial, all for the best")
    set: dict[str, Any] = Field(default_factory=dict, description="overrides all trials share, such as training.epochs")
    ranges: dict[str, SearchRange] = Field(
        default_factory=dict, description="settings searched for every method, besides the method's own `search`"
    )
    spaces: dict[str, dict[str, SearchRange]] = Field(
        default_factory=dict, description="settings searched for one of the methods: method -> setting -> range"
    )
    named: str = Field("{method}-tuned-{search}", description="names of the tuned methods")
    posteriors: tuple[str, ...] = Field(
        (), description="methods without training of their own whose `base` is tuned: each gets a tuned one too"
    )
    studies: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="experiments that are written and built when the search is done, by their names, which "
        "begin with `tuned-`; among their "
        "methods `tuned` stands for all tuned ones and `untuned` for the same as they were",
    )

    @model_validator(mode="after")
    def _names(self) -> Tuning:
        if "{method}" not in self.named:
            raise ValueError(f"named: {self.named!r} gives all methods one name; it needs {{method}}")
        if strangers := [name for name in self.spaces if name not in self.methods]:
            raise ValueError(f"spaces: {', '.join(strangers)} is not among `methods`")
        if wrong := [name for name in self.studies if not re.fullmatch(r"tuned-[\w.-]+", name)]:
            raise ValueError(
                f"studies: {wrong[0]!r} does not begin with tuned-, and would replace an experiment of yours"
            )
        if self.halving and self.halving.keep > self.trials:
            raise ValueError(f"halving: keep is {self.halving.keep}, but there are {self.trials} trials")
        return self

    @property
    def budget(self) -> int:
        """Training runs spent on each method, brief ones included."""
        return (self.trials + (self.halving.keep if self.halving else 0)) * len(self.seeds)
