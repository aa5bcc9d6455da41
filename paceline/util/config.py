"""Build option dataclasses from `name:key=value,...` specs, mappings or JSON."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.errors import ConfigError, did_you_mean

T = TypeVar("T")
SpecKey = tuple[str, frozenset[tuple[str, str]]]  # name and options, in any order

_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}
_QUOTED = re.compile(r"""(?<==)(?:"[^"]*"|'[^']*')""")
_NEEDS_QUOTES = re.compile(r"""[\s,'"]|^$""")


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split "name:key=value,key=value" into the name and the options.

    The name may be "module:Class". The values remain text. Values with commas need single or double
    quotes, as in sssd:datastore="my, store". In a list of drafters, values with spaces also need
    quotes.

    Args:
        spec: Drafter spec.
    Raises:
        ConfigError: `spec` is not a string, an option has no `=` or occurs twice, or a closing
            quote is missing.
    """
    if not isinstance(spec, str):
        raise ConfigError(
            f"\0drafter\0: got {spec!r}; expected a name or 'name:key=value'."
            " Plain decoding is 'none'."
        )
    name, rest = split_spec(spec)
    options: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in cut_outside_quotes(rest, ","))):
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals:
            raise ConfigError(
                f"got {item!r} in {spec!r}; expected options as key=value, for example"
                " 'draft_model:max_draft_tokens=4'."
            )
        if key in options:
            raise ConfigError(f"got option {key!r} twice in {spec!r}. Remove one of the two.")
        options[key] = _unquoted(value.strip(), spec)
    return name, options


def cut_outside_quotes(text: str, separator: str) -> list[str]:
    """Split text at a separator, except inside quoted values.

    Args:
        text: Text to split.
        separator: Regular expression for the separator.
    """
    quoted = [match.span() for match in _QUOTED.finditer(text)]
    parts, start = [], 0
    for match in re.finditer(separator, text):
        if not any(first <= match.start() < last for first, last in quoted):
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def in_quotes(value: str) -> str:
    """Return a value as written in a drafter spec, in quotes if necessary.

    Args:
        value: Text without double quotes.
    """
    return f'"{value}"' if _NEEDS_QUOTES.search(value) else value


def _unquoted(value: str, spec: str) -> str:
    if value[:1] not in ("'", '"'):
        return value
    if len(value) < 2 or value[-1] != value[0]:
        raise ConfigError(f"got {value!r} in {spec!r}; expected a quote at its end, too. Close it.")
    return value[1:-1]


def split_spec(spec: str) -> tuple[str, str]:
    """Split "name:options" or "module:Class:options" into the name and the options.

    The name may be "module:Class"; the options are returned as one string.
    """
    name, _, rest = spec.partition(":")
    second, _, options = rest.partition(":")
    if second and all(part.isidentifier() for part in second.strip().split(".")):
        return f"{name.strip()}:{second.strip()}", options
    return name.strip(), rest


def build_options(cls: type[T], values: Mapping[str, Any], owner: str) -> T:
    """Build an options dataclass, converting text to the type of each field.

    Args:
        cls: Dataclass to build.
        values: Values by field name.
        owner: Name of the options' owner in error messages, such as a drafter's name.
    Raises:
        ConfigError: A key is unknown (the message names the closest match), or a value has the
            wrong type or range.
    """
    fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise ConfigError(f"{owner} has no option {key!r}.{did_you_mean(key, fields)}")
    hints = get_type_hints(cls)
    return cls(
        **{key: _convert(value, hints[key], f"{owner}: {key}") for key, value in values.items()}
    )


def _convert(value: Any, annotation: Any, where: str) -> Any:
    kinds = (
        list(get_args(annotation))
        if get_origin(annotation) in (Union, types.UnionType)
        else [annotation]
    )
    if not isinstance(value, str):
        if isinstance(value, bool) and bool not in kinds:
            raise ConfigError(f"{where}: got {value!r}; expected {_names(kinds)}.")
        if isinstance(value, int) and float in kinds and int not in kinds:
            return float(value)
        if not isinstance(value, tuple(kinds)):
            raise ConfigError(f"{where}: got {value!r}; expected {_names(kinds)}.")
        return value
    if type(None) in kinds and value.lower() == "none":
        return None
    for kind in kinds:
        if kind is bool and is_truth(value):
            return value.lower() in _TRUE
        if kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
        if kind is str:
            return value
    raise ConfigError(f"{where}: got {value!r}; expected {_names(kinds)}.")


_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): "none",
}


def is_truth(text: str) -> bool:
    """Return whether a string stands for true or false, such as "yes" or "0"."""
    return text.lower() in _TRUE | _FALSE


def _names(kinds: list[Any]) -> str:
    return " or ".join(_NAMES.get(kind, kind.__name__) for kind in kinds)


def require_range(
    owner: str, name: str, value: float, low: float, high: float | None = None
) -> None:
    """Raise an error unless a value is within [low, high].

    Args:
        owner: Name of the options' owner in error messages, such as a drafter's name.
        name: Name of the option.
        value: Value to check; NaN is never valid.
        low: Minimum value.
        high: Maximum value; None means no maximum.
    Raises:
        ConfigError: The value is outside the range; the message names the range.
    """
    if not (low <= value and (high is None or value <= high)):  # also rejects NaN
        expected = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigError(f"\0{owner}: {name}\0: got {value}; expected {expected}.")


def require_count(owner: str, name: str, value: object, low: int) -> None:
    """Raise an error unless a value is an integer of at least `low`.

    Args:
        owner: Name of the options' owner in error messages, such as a drafter's name.
        name: Name of the option.
        value: Value to check.
        low: Minimum value.
    Raises:
        ConfigError: The value is invalid; the message states the allowed values.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"\0{owner}: {name}\0: got {value!r}; expected a whole number.")
    require_range(owner, name, value, low)


def spec_key(spec: str) -> SpecKey:
    """Return a key that is equal for drafter specs with the same meaning.

    The key does not depend on spaces or on the order of options.
    """
    name, options = parse_spec(spec)
    return name, frozenset(options.items())
