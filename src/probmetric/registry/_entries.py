"""What is known of a component without importing it: where it lives, its options, the constants planning needs.

An entry is read off the imported class or function once, and is then plain data: the catalogue shipped with the
package, or a file below state/.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from probmetric.registry._names import OptionValueError, RegistrationError
from probmetric.registry._ranges import ANY, LARGEST, Range, range_of

Flag = bool | Mapping[str, Any]
"""A class constant that says yes or no or, where that depends on options, names the options that make it yes."""

REQUIRED = object()
_CHECKED: dict[str, tuple[type, ...]] = {
    "float": (int, float),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
    "list": (list, tuple),
    "dict": (dict,),
    "None": (type(None),),
}
_FARTHEST = 1e15
_ALIASES = {"tuple": "list", "Sequence": "list", "Mapping": "dict", "NoneType": "None"}


Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(low=0)]
Share = Annotated[float, Range(low=0, below=1)]
Count = Annotated[int, Range(low=1, high=LARGEST)]


@dataclass(frozen=True)
class Option:
    """One keyword option of a component.

    Attributes:
        name: its name.
        default: its default; `REQUIRED` where it has none.
        types: names of the types it takes (float, int, bool, str, list, dict, None); empty where nobody says.
        choices: the only values it takes, of a `Literal`.
        range: the numbers it takes; none is larger than 1e15.
    """

    name: str
    default: Any
    types: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    range: Range = ANY

    @property
    def allowed(self) -> str:
        """What it takes, for people: `float or None`, `'a', 'b'`."""
        return ", ".join(map(repr, self.choices)) if self.choices else " or ".join(self.types) or "anything"

    @property
    def is_number(self) -> bool:
        """Whether it takes numbers."""
        return bool({"float", "int"} & set(self.types))

    def check(self, where: str, value: Any) -> None:
        """Raise `OptionValueError`, beginning with `where`, for a value it does not take."""
        if self.choices and value not in self.choices:
            raise OptionValueError(f"{where} is {value!r}; allowed: {self.allowed}.")
        if self.types and not any(_is(value, name) for name in self.types):
            raise OptionValueError(f"{where} is {value!r} ({type(value).__name__}); expected {self.allowed}.")
        wrong = [number for number in _numbers(value) if not (-_FARTHEST < number < _FARTHEST and number in self.range)]
        if wrong:
            allowed = str(self.range) or f"between {-_FARTHEST:g} and {_FARTHEST:g}"
            raise OptionValueError(f"{where} is {value!r}; allowed: a number {allowed}.")

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        found: dict[str, Any] = {} if self.default is REQUIRED else {"default": self.default}
        found |= {"types": list(self.types)} if self.types else {}
        found |= {"choices": list(self.choices)} if self.choices else {}
        bounds = {name: bound for name, bound in vars(self.range).items() if bound is not None}
        return found | ({"range": bounds} if bounds else {})

    @classmethod
    def of(cls, name: str, plain: Mapping[str, Any]) -> Option:
        """From JSON values."""
        default = plain.get("default", REQUIRED)
        bounds = Range(**plain.get("range", {}))
        return cls(name, default, tuple(plain.get("types", ())), tuple(plain.get("choices", ())), bounds)


def _numbers(value: Any) -> list[float]:
    """The number, or those of a list."""
    if isinstance(value, list | tuple):
        return [number for part in value for number in _numbers(part)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _CHECKED[name]) and (name == "bool" or not isinstance(value, bool))


@dataclass(frozen=True)
class Entry:
    """What is known of a component: the module that defines it, options, constants, and a line about it."""

    module: str
    options: dict[str, Option] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    doc: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        options = {name: option.plain() for name, option in self.options.items()}
        return {"module": self.module, "doc": self.doc, "constants": self.constants, "options": options}

    def ranged(self, kind: str) -> Entry:
        """The entry of a component of the package, with the ranges its options' names stand for."""
        options = {
            name: replace(option, range=range_of(kind, name, option.range)) if option.is_number else option
            for name, option in self.options.items()
        }
        return replace(self, options=options)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Entry:
        """From JSON values."""
        options = {name: Option.of(name, found) for name, found in plain["options"].items()}
        return cls(plain["module"], options, plain["constants"], plain["doc"])


def entry_of(component: Callable[..., Any], module: str, context: Iterable[str], constants: Iterable[str]) -> Entry:
    """The entry of an imported component.

    Args:
        component: the registered class or function.
        module: the module its entry names.
        context: arguments its creator gives, which are no options.
        constants: names of the class constants to keep, where the component has them.

    Raises:
        RegistrationError: an option before `*`, or a default that is no plain value.
    """
    where = f"{component.__module__}.{component.__qualname__}"
    options = {option.name: option for option in _options(component, where, tuple(context))}
    kept = {name: _plain(getattr(component, name), where, name) for name in constants if hasattr(component, name)}
    return Entry(module, options, kept, _first_line(component))


def _options(component: Callable[..., Any], where: str, context: tuple[str, ...]) -> Iterator[Option]:
    seen = {*context}
    for function, parameters in _signatures(component):
        for name, parameter in parameters.items():
            if name in seen or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if parameter.kind is not parameter.KEYWORD_ONLY:
                raise RegistrationError(f"{where} takes {name!r} before `*`; declare options after `*`, as keywords.")
            seen.add(name)
            annotation = _resolved(parameter.annotation, function)
            types_, choices = _allowed(annotation)
            default = REQUIRED if parameter.default is parameter.empty else _plain(parameter.default, where, name)
            yield Option(name, default, types_, choices, _range(annotation))


def _signatures(component: Callable[..., Any]) -> Iterator[tuple[Any, dict[str, inspect.Parameter]]]:
    """The component's own parameters and, while they are passed on by `**`, those of the classes below it."""
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


def _resolved(annotation: Any, function: Any) -> Any:
    """The annotation itself, of one written as text; `Any` where its names exist for type checkers only."""
    if not isinstance(annotation, str):
        return annotation
    lone = types.FunctionType((lambda: None).__code__, function.__globals__)
    lone.__annotations__ = {"return": annotation}
    try:
        return typing.get_type_hints(lone, include_extras=True)["return"]
    except (NameError, AttributeError, TypeError):
        return Any


def _allowed(annotation: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """(types, choices) an annotation allows; nothing where it is open or not one of the types we check."""
    parts = [_bare(part) for part in _parts(annotation)]
    literal = [part for part in parts if typing.get_origin(part) is Literal]
    names = [_type_name(part) for part in parts if part not in literal]
    if not all(names):
        return (), ()
    choices = [choice for part in literal for choice in typing.get_args(part)]
    if choices and set(names) <= {"None"}:
        return (), (*choices, *(None for _ in names))
    return (() if choices else tuple(dict.fromkeys(names))), ()


def _range(annotation: Any) -> Range:
    """The range written into an annotation."""
    marks = (mark for part in _parts(annotation) for mark in getattr(part, "__metadata__", ()))
    return next((mark for mark in marks if isinstance(mark, Range)), ANY)


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The annotation, or those it is a union of."""
    return typing.get_args(annotation) if _is_union(annotation) else (annotation,)


def _bare(annotation: Any) -> Any:
    """The type of `Annotated[type, ...]`."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _type_name(annotation: Any) -> str:
    """Name of a type we check, "" for any other."""
    plain = type(None) if annotation is None else typing.get_origin(annotation) or annotation
    name = getattr(plain, "__name__", "")
    name = _ALIASES.get(name, name)
    return name if name in _CHECKED else ""


def _plain(value: Any, where: str, name: str) -> Any:
    """`value` as it is after being written to JSON and read again."""
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
    """First line of its own docstring, else of its module's."""
    own = vars(component).get("__doc__") if isinstance(component, type) else component.__doc__
    text = own or getattr(inspect.getmodule(component), "__doc__", None) or ""
    return text.strip().partition("\n")[0].strip()
