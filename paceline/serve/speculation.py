"""Which drafters a request may name. Clients must not open files of the server or import modules
by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from paceline.drafters import PLAIN, available, entry
from paceline.errors import ConfigError, did_you_mean
from paceline.serve.requests import Speculation
from paceline.util.config import in_quotes, is_truth, parse_spec, spec_key, split_spec

_WORDS = {
    "stop_rule",
    "verification",
    "fusion",
    "inspiration",
    "on_invalid_file",
}  # options that are words of a few, and no files


class Speculations:
    """Turns what a request says of speculation into the spec of a drafter.

    Args:
        own: name of the engine's drafter.
        allowed: specs that may be named besides, whatever their options are.
    """

    def __init__(self, own: str, allowed: Iterable[str] = ()) -> None:
        self._own = own
        self._allowed = {spec_key(spec): spec for spec in allowed}
        self._by_name = {parse_spec(spec)[0]: spec for spec in allowed}

    def spec(self, asked: bool | str | Speculation | None) -> tuple[str | None, int | None]:
        """Return the spec of the drafter, None for the engine's own, and the most nodes per step,
        None for as many as it likes.

        A name alone is the engine's own drafter or an allowed one, where one has that name.

        Raises:
            ConfigError: an unknown drafter, one outside this package, an unknown option, or one
                that may name a file.
        """
        if isinstance(asked, bool) or asked is None:
            return (PLAIN, None) if asked is False else (None, None)
        spec, nodes = (asked, None) if isinstance(asked, str) else (_spec(asked), asked.max_nodes)
        if spec is None:
            return None, nodes
        name, options = parse_spec(spec)
        if not options and (name == self._own or name in self._by_name):
            return self._by_name.get(name) if name != self._own else None, nodes
        if spec_key(spec) in self._allowed:
            return self._allowed[spec_key(spec)], nodes
        _check(name, options)
        return spec, nodes


def _spec(asked: Speculation) -> str | None:
    options = asked.model_extra or {}
    if asked.drafter is None:
        if options:
            raise ConfigError(
                f"speculation: got {', '.join(options)} and no drafter; expected its name. Add"
                " drafter."
            )
        return None
    if ":" in asked.drafter and options:
        raise ConfigError(
            f"speculation: got options in {asked.drafter!r} and beside it; expected them in one"
            " place. Choose one."
        )
    return f"{asked.drafter}:{_listed(options)}" if options else asked.drafter


def _listed(options: dict[str, Any]) -> str:
    for name, value in options.items():
        fine = (
            name.isidentifier()
            and isinstance(value, str | int | float)
            and not set(str(value)) & set("\"'")
        )
        if not fine:
            raise ConfigError(
                f"speculation: got {name!r} = {value!r}; expected an option's name, and a number,"
                " word or truth value."
            )
    return ",".join(f"{name}={in_quotes(str(value))}" for name, value in options.items())


def _check(name: str, options: dict[str, str]) -> None:
    if name not in available() or ":" in split_spec(name)[0]:
        raise ConfigError(f"speculation: got drafter {name!r}.{did_you_mean(name, available())}")
    types = {field.name: str(field.type) for field in fields(entry(name).options())}
    for option, value in options.items():
        if option not in types:
            raise ConfigError(
                f"speculation: got option {option!r} of {name}.{did_you_mean(option, types)}"
            )
        plain = (
            option in _WORDS or _is_number(value) or ("bool" in types[option] and is_truth(value))
        )
        if "str" in types[option] and not plain:
            raise ConfigError(
                f"speculation: got {option}, which may name a file; expected none from a client."
                " Start the server with"
                " --allow-drafter and this drafter."
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
