"""Describe the options of components and the values that each takes, and check values.

An option is a keyword argument, its range an annotation in the component's signature:

    margin: float = 0.2                                              any number up to 1e15
    scale: Positive = 16.0                                           above 0
    cutoff: Annotated[float, Range(above=0, below=2)] = 0.5          between two numbers
    ratio: tuple[float, float] = (0.75, 1.33)                        a list of two numbers
    upper: Annotated[float, Range(above="cutoff", high=2)] = 2.0     bounded by another option
    prior: Annotated[float, When(kind="fixed")] = 1.0                used only with one value of another option

`Registry.create` checks the options it passes on. Configuration checks them with the same functions, from the
catalogue. Constructors do not check their arguments.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Annotated, Any, Literal

from probmetric.errors import ProbMetricError, nearest


class UnknownNameError(ProbMetricError, ValueError):
    """No component or option has this name."""


class OptionValueError(ProbMetricError, ValueError):
    """An option does not take this value."""


class RegistrationError(ProbMetricError, ValueError):
    """A component cannot be registered, because of its name, its options or a missing declaration."""


class PluginError(ProbMetricError, ValueError):
    """A plugin cannot be found or imported."""


Flag = bool | Mapping[str, Any]
"""A class constant that says yes or no or, where that depends on options, names the options that make it yes."""

REQUIRED = object()
LARGEST = 10**6
"""Largest count: of images, of epochs."""
_FARTHEST, _NEAREST, _LONGEST = 1e15, 1e-15, 200
_CHECKED: dict[str, tuple[type, ...]] = {
    "float": (int, float),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
    "list": (list, tuple),
    "dict": (dict,),
    "None": (type(None),),
}
_ALIASES = {"tuple": "list", "Sequence": "list", "Mapping": "dict", "NoneType": "None"}


@dataclass(frozen=True)
class Range:
    """Numbers that an option takes, written `Annotated[float, Range(above=0)]`; None means no bound.

    A bound may name another option; the bound is then the value of that option. If this is None, there is no bound.

    Attributes:
        above: smaller than any allowed number.
        low: the smallest allowed number.
        high: the largest allowed number.
        below: larger than any allowed number.
    """

    above: int | float | str | None = None
    low: int | float | str | None = None
    high: int | float | str | None = None
    below: int | float | str | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that bound this range."""
        return tuple(bound for bound in self._bounds if isinstance(bound, str))

    @property
    def _bounds(self) -> tuple[float | str | None, ...]:
        return self.above, self.low, self.high, self.below

    def resolved(self, values: Mapping[str, Any]) -> Range:
        """Return the range with `values` in place of the names of options."""
        bounds = {side: values.get(bound) if isinstance(bound, str) else bound for side, bound in asdict(self).items()}
        return Range(**{side: bound for side, bound in bounds.items() if isinstance(bound, int | float)})

    def __contains__(self, number: Any) -> bool:
        above, low, high, below = self._bounds
        return (
            (number == 0 or _NEAREST <= abs(number) <= _FARTHEST)
            and (above is None or number > above)
            and (low is None or number >= low)
            and (high is None or number <= high)
            and (below is None or number < below)
        )

    def __str__(self) -> str:
        words = {"above": self.above, "at least": self.low, "at most": self.high, "below": self.below}
        bounds = [f"{word} {_shown(bound)}" for word, bound in words.items() if bound is not None]
        return ", ".join(bounds) or f"at least {-_FARTHEST:g}, at most {_FARTHEST:g}"


def _shown(bound: float | str) -> str:
    return bound if isinstance(bound, str) else f"{bound:.10g}"


class When:
    """Mark an option that is used only with some values of another one: `When(prior="fixed")`, or a tuple of values.

    With any other value of that option, it must keep its default.
    """

    def __init__(self, **options: Any) -> None:
        pairs = options.items()
        self.options = {name: value if isinstance(value, tuple) else (value,) for name, value in pairs}


Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(low=0)]
Share = Annotated[float, Range(low=0, below=1)]
OpenShare = Annotated[float, Range(above=0, below=1)]
Fraction = Annotated[float, Range(above=0, high=1)]
LearningRate = Annotated[float, Range(above=0, high=1e4)]
Count = Annotated[int, Range(low=1, high=LARGEST)]
CountOrZero = Annotated[int, Range(low=0, high=LARGEST)]
Draws = Annotated[int, Range(low=2, high=5000)]
"""Number of draws a spread is estimated from."""
StepCount = Annotated[int, Range(low=1, high=1024)]
"""Number that every step of training pays for: of draws, of proxies of a class, of units of a layer."""
Pixels = Annotated[int, Range(low=1, high=10_000)]
"""Side of an image."""
ANY = Range()


@dataclass(frozen=True)
class Option:
    """One keyword option of a component.

    Attributes:
        name: its name.
        default: its default; `REQUIRED` if it has none.
        types: names of the types it takes (float, int, bool, str, list, dict, None); empty if not declared.
        lengths: how many numbers its list may hold; empty if not declared.
        choices: the only values it takes, from a `Literal`.
        range: the numbers it takes, at most 1e15.
        when: other option -> its values with which this option is used.
    """

    name: str
    default: Any = REQUIRED
    types: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    choices: tuple[Any, ...] = ()
    range: Range = ANY
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def allowed(self) -> str:
        """The values it takes, in words: `float or None`, `'a', 'b'`."""
        return ", ".join(map(repr, self.choices)) if self.choices else " or ".join(self.types) or "anything"

    def check(self, where: str, value: Any, others: Mapping[str, Any] | None = None) -> Any:
        """Return the checked `value`; an integer becomes a float if the option takes floats.

        Args:
            where: beginning of the message.
            value: the value.
            others: values of the component's options, which the range may depend on.

        Raises:
            OptionValueError: the option does not take this value.
        """
        if self.choices and value not in self.choices:
            raise OptionValueError(f"{where} is {_text(value)}; allowed: {self.allowed}.")
        if self.types and not any(_is(value, name) for name in self.types):
            raise OptionValueError(f"{where} is {_text(value)} ({type(value).__name__}); expected {self.allowed}.")
        numbers = _numbers(value)
        if self.lengths and isinstance(value, list | tuple) and not len(value) == len(numbers) in self.lengths:
            expected = " or ".join(map(str, self.lengths))
            raise OptionValueError(f"{where} is {_text(value)}; expected a list of {expected} numbers.")
        others = others or {}
        bounds = self.range.resolved(others)
        if not all(number in bounds for number in numbers):
            sizes = [abs(number) for number in numbers if number]
            tiny = f", not nearer to 0 than {_NEAREST:g}" if any(size < _NEAREST for size in sizes) else ""
            huge = f", not farther from 0 than {_FARTHEST:g}" if any(size > _FARTHEST for size in sizes) else ""
            bounding = "".join(f" ({name} is {_text(others[name])})" for name in self.range.options)
            raise OptionValueError(f"{where} is {_text(value)}; allowed: a number {self.range}{tiny}{huge}{bounding}.")
        for name, values in self.when.items() if value != self.default else ():
            if others[name] not in values:
                shown, other = " or ".join(map(repr, values)), _text(others[name])
                raise OptionValueError(
                    f"{where} is {_text(value)}, which counts with {name}={shown} only; {name} is {other}. "
                    f"Leave it out, or change {name}."
                )
        return float(value) if "float" in self.types and "int" not in self.types and _is(value, "int") else value

    @property
    def depends_on(self) -> set[str]:
        """Names of the options whose values decide which values this one takes."""
        return {*self.range.options, *self.when}


def check_options(where: str, options: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values`, checked against `options`; integers become floats where options take floats.

    Args:
        where: the component in messages, as `loss 'arcface'`.
        options: every option of the component.
        values: name -> value of the options that were set.

    Raises:
        UnknownNameError: the component does not have an option.
        OptionValueError: an option does not take a value, by itself or with the other options.
    """
    for name in values:
        if name not in options:
            raise UnknownNameError(f"{where} has no option {name!r}: {nearest(name, options)}")
    complete = {name: values.get(name, option.default) for name, option in options.items()}
    affected = {name for name, option in options.items() if name in values or option.depends_on & values.keys()}
    checked = {
        name: option.check(f"{where}: option {name!r}", complete[name], complete)
        for name, option in options.items()
        if name in affected and complete[name] is not REQUIRED
    }
    return {name: checked[name] for name in values}


def _numbers(value: Any) -> list[float]:
    """Return the number, or the numbers of a list."""
    if isinstance(value, list | tuple):
        return [number for part in value for number in _numbers(part)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def _text(value: Any) -> str:
    """Return `value` for a message, cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integers of more than 4,300 digits
        return "an integer of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _CHECKED[name]) and (name == "bool" or not isinstance(value, bool))


@dataclass(frozen=True)
class Entry:
    """Facts about a component that are known without importing it: module, options, constants, one line of text."""

    module: str
    options: dict[str, Option] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    doc: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        exclude = {"__all__": {"name"}}
        options = _as_json().dump_python(self.options, mode="json", exclude_defaults=True, exclude=exclude)
        return {"module": self.module, "doc": self.doc, "constants": self.constants, "options": options}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Entry:
        """Read an entry from JSON values."""
        options = {name: {"name": name} | values for name, values in plain["options"].items()}
        return cls(plain["module"], _as_json().validate_python(options), plain["constants"], plain["doc"])


@functools.cache
def _as_json() -> Any:
    """Return the adapter that writes options by name as JSON values, and reads them."""
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, Option])


def entry_of(component: Callable[..., Any], module: str, context: Iterable[str], constants: Iterable[str]) -> Entry:
    """Return the entry of an imported component.

    Args:
        component: the registered class or function.
        module: the module its entry names.
        context: arguments that its creator gives, which are no options.
        constants: names of the class constants to keep, if the component has them.

    Raises:
        RegistrationError: an option is before `*` or has no type, a field would not become an option, a default is no
            plain value, or a range names an unknown option.
    """
    where = f"{component.__module__}.{component.__qualname__}"
    options = {option.name: option for option in _options(component, where, tuple(context))}
    for name, kind in inspect.get_annotations(component).items() if "__init__" not in vars(component) else ():
        if name in vars(component) and name not in constants and "ClassVar" not in str(kind):
            raise RegistrationError(
                f"{where}: field {name!r} would be no option; write @dataclass(frozen=True, kw_only=True) below "
                "@register, or annotate what is no option as ClassVar."
            )
    for option in options.values():
        for name in option.depends_on - options.keys():
            raise RegistrationError(f"{where}: {option.name!r} depends on {name!r}. {nearest(name, options)}")
    values = {name: _plain(getattr(component, name), where, name) for name in constants if hasattr(component, name)}
    return Entry(module, options, values, _first_line(component))


def _options(component: Callable[..., Any], where: str, context: tuple[str, ...]) -> Iterator[Option]:
    seen = {*context}
    for function, parameters in _signatures(component):
        for name, parameter in parameters.items():
            if name in seen or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if parameter.kind is not parameter.KEYWORD_ONLY:
                named = f", and what it is called with is named {', '.join(context)}" if context else ""
                raise RegistrationError(
                    f"{where} takes {name!r} before `*`; declare options after `*`, as keywords{named}."
                )
            seen.add(name)
            default = REQUIRED if parameter.default is parameter.empty else _plain(parameter.default, where, name)
            classes = component.__mro__ if is_dataclass(component) and isinstance(component, type) else ()
            declares = next((cls for cls in classes if name in inspect.get_annotations(cls)), None)
            names = getattr(sys.modules.get(declares.__module__), "__dict__", {}) if declares else function.__globals__
            annotation = _resolved(parameter.annotation, names)
            option = replace(option_of(name, annotation), default=default)
            if not (option.types or option.choices or annotation is Any):
                raise RegistrationError(
                    f"{where}: option {name!r} declares no type that can be checked; write {name}: float, or another "
                    f"of {', '.join(_CHECKED)}, Literal, a union of these, Any."
                )
            yield option


def option_of(name: str, annotation: Any) -> Option:
    """Return the option an annotation describes, without a default."""
    marks = list(_marks(annotation))
    bounds = next((mark for mark in marks if isinstance(mark, Range)), ANY)
    when = next((mark.options for mark in marks if isinstance(mark, When)), {})
    types_, choices = _allowed(annotation)
    return Option(name, REQUIRED, types_, _lengths(annotation), choices, bounds, when)


def _signatures(component: Callable[..., Any]) -> Iterator[tuple[Any, dict[str, inspect.Parameter]]]:
    """Yield the component's own parameters and, while `**` passes them on, those of its base classes."""
    if not isinstance(component, type):
        yield component, dict(inspect.signature(component).parameters)
        return
    for cls in component.__mro__[:-1]:
        if "__init__" not in vars(cls):
            continue
        function = vars(cls)["__init__"]
        parameters = dict(list(inspect.signature(function).parameters.items())[1:])
        yield function, parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """Evaluate an annotation written as text; it stays text if its names exist for type checkers only."""
    if not isinstance(annotation, str):
        return annotation
    lone = types.FunctionType((lambda: None).__code__, names)
    lone.__annotations__ = {"return": annotation}
    try:
        return typing.get_type_hints(lone, include_extras=True)["return"]
    except (NameError, AttributeError, TypeError):
        return annotation


def _allowed(annotation: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return the (types, choices) that an annotation allows; both empty if it is open or not a type we check."""
    parts = list(_parts(annotation))
    literal = [part for part in parts if typing.get_origin(part) is Literal]
    names = [_type_name(part) for part in parts if part not in literal]
    if not all(names):
        return (), ()
    choices = [choice for part in literal for choice in typing.get_args(part)]
    if choices and set(names) <= {"None"}:
        return (), (*choices, *(None for _ in names))
    return (() if choices else tuple(dict.fromkeys(names))), ()


def _lengths(annotation: Any) -> tuple[int, ...]:
    """Return how many numbers a list may hold, two for `tuple[float, float]`; empty if any number is allowed."""
    tuples = [typing.get_args(part) for part in _parts(annotation) if typing.get_origin(part) is tuple]
    numbers = all(kind in (int, float) for kinds in tuples for kind in kinds)
    return tuple(len(kinds) for kinds in tuples) if numbers else ()


def _marks(annotation: Any) -> Iterator[Any]:
    """Yield the marks that `Annotated` adds to a type, or to a part of a union."""
    yield from getattr(annotation, "__metadata__", ())
    inner = typing.get_args(annotation)
    for part in inner[:1] if typing.get_origin(annotation) is Annotated else inner if _is_union(annotation) else ():
        yield from _marks(part)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the type, or the types of a union, without the marks of `Annotated`."""
    if typing.get_origin(annotation) is Annotated:
        yield from _parts(typing.get_args(annotation)[0])
    elif _is_union(annotation):
        for part in typing.get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _type_name(annotation: Any) -> str:
    """Return the name of a type we check, "" for any other."""
    plain = type(None) if annotation is None else typing.get_origin(annotation) or annotation
    name = getattr(plain, "__name__", "")
    name = _ALIASES.get(name, name)
    return name if name in _CHECKED else ""


def _plain(value: Any, where: str, name: str) -> Any:
    """Return the value that results from writing `value` to JSON and reading it."""
    if isinstance(value, tuple | list):
        return [_plain(part, where, name) for part in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(part, where, name) for key, part in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise RegistrationError(
        f"{where}: {name!r} is {value!r}; options and constants are numbers, strings, booleans, None, or lists and "
        "mappings of these, so that they can be read without importing the component."
    )


def _first_line(component: Callable[..., Any]) -> str:
    """Return the first line of the component's own docstring, else of its module's."""
    docstring = vars(component).get("__doc__") if isinstance(component, type) else component.__doc__
    text = docstring or getattr(inspect.getmodule(component), "__doc__", None) or ""
    return text.strip().partition("\n")[0].strip()
