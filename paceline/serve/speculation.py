"""Convert the drafter named in a request to a drafter spec.

The conversion rejects drafters and options with which a client could open files or import modules
on the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from paceline.drafters import PLAIN, available, check_spec, entry
from paceline.errors import ConfigError, did_you_mean
from paceline.serve.requests import Speculation
from paceline.util.config import in_quotes, is_truth, parse_spec, spec_key, split_spec

# String options that accept only certain words, and therefore never name a file.
_WORDS = {"stop_rule", "verification", "fusion", "inspiration", "on_invalid_file"}


class Speculations:
    """Converts the `speculation` field of requests to drafter specs.

    Args:
        own: Name of the engine's default drafter.
        allowed: Drafter specs that the server's operator allows. Unlike other specs, these specs
            may contain options that name files.
        has_draft_model: Whether the server has a draft model.
    Raises:
        ConfigError: An allowed spec names an unknown drafter or option, a value is out of range, or
            the drafter needs a draft model that the server lacks.
    """

    def __init__(self, own: str, allowed: Sequence[str] = (), has_draft_model: bool = True) -> None:
        self._own, self._has_draft_model = own, has_draft_model
        for spec in allowed:
            check_spec(spec, has_draft_model)
        self._allowed = {spec_key(spec): spec for spec in allowed}
        self._by_name = {parse_spec(spec)[0]: spec for spec in allowed}

    def spec(self, speculation: bool | str | Speculation | None) -> tuple[str | None, int | None]:
        """Return the drafter spec of a request, and its maximum draft nodes per step.

        A drafter's name without options selects the default drafter or the allowed spec with this
        name.

        Args:
            speculation: The field `speculation` of a request: a drafter spec, an object, or whether
                to draft at all.
        Returns:
            The drafter spec and the maximum number of draft nodes per step. If the spec is None,
            the engine uses its default drafter. If the number is None, there is no limit.
        Raises:
            ConfigError: The drafter or an option is unknown, the drafter is not part of this
                package, or an option could name a file. Also raised if the drafter needs a draft
                model that the server lacks.
        """
        if isinstance(speculation, bool) or speculation is None:
            return (PLAIN, None) if speculation is False else (None, None)
        spec, max_nodes = (
            (speculation, None)
            if isinstance(speculation, str)
            else (_spec(speculation), speculation.max_nodes)
        )
        if spec is None:
            return None, max_nodes
        name, options = parse_spec(spec)
        if not options and (name == self._own or name in self._by_name):
            return self._by_name.get(name) if name != self._own else None, max_nodes
        if spec_key(spec) in self._allowed:
            return self._allowed[spec_key(spec)], max_nodes
        _check(name, options)
        if entry(name).needs_draft_model and not self._has_draft_model:
            raise ConfigError(
                f"speculation: {name} needs a draft model, which the server lacks. Start the server"
                " with --draft-model."
            )
        return spec, max_nodes


def _spec(speculation: Speculation) -> str | None:
    options = speculation.model_extra or {}
    if speculation.drafter is None:
        if options:
            raise ConfigError(
                f"speculation: the options {', '.join(options)} require a drafter. Add the field"
                " drafter."
            )
        return None
    if ":" in speculation.drafter and options:
        raise ConfigError(
            f"speculation: both {speculation.drafter!r} and the other fields set options. Use"
            " only one of them."
        )
    return f"{speculation.drafter}:{_listed(options)}" if options else speculation.drafter


def _listed(options: dict[str, Any]) -> str:
    for name, value in options.items():
        valid = (
            name.isidentifier()
            and isinstance(value, str | int | float)
            and not set(str(value)) & set("\"'")
        )
        if not valid:
            raise ConfigError(
                f"speculation: got {name!r} = {value!r}; expected the name of an option, and as"
                " its value a number, a word, true or false."
            )
    return ",".join(f"{name}={in_quotes(str(value))}" for name, value in options.items())


def _check(name: str, options: dict[str, str]) -> None:
    if name not in available() or ":" in split_spec(name)[0]:
        raise ConfigError(
            f"speculation: there is no drafter {name!r}.{did_you_mean(name, available())}"
        )
    types = {field.name: str(field.type) for field in fields(entry(name).options())}
    for option, value in options.items():
        if option not in types:
            raise ConfigError(
                f"speculation: {name} has no option {option!r}.{did_you_mean(option, types)}"
            )
        plain = (
            option in _WORDS or _is_number(value) or ("bool" in types[option] and is_truth(value))
        )
        if "str" in types[option] and not plain:
            raise ConfigError(
                f"speculation: requests may not set {option}, because it may name a file. Start"
                " the server with --allow-drafter and this drafter."
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
