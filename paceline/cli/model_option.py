"""Also accept the target model through the option `--model` or `-m`.

Commands declare the model as their first positional argument. `with_model_first` moves the
option's value to that position.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cyclopts import App

from paceline.errors import ConfigError

MODEL = "MODEL"  # name of the positional argument
_OPTION = re.compile(r"(--model|-m)(?:=(.*))?", re.DOTALL)
_END_OF_OPTIONS = "--"
_SHOWN_INSTEAD = {"--help", "-h", "--version"}  # these run no command


def with_model_first(app: App, words: Sequence[str]) -> list[str]:
    """Return the command line with the model as the first positional argument.

    The model is taken from the option `--model` or `-m`. The command line stays the same if this
    option is missing or the command has no target model.

    Args:
        app: paceline's command-line app.
        words: Words of the command line after the program's name.
    Raises:
        ConfigError: The option has no value, or occurs twice.
    """
    end = words.index(_END_OF_OPTIONS) if _END_OF_OPTIONS in words else len(words)
    has_option = any(_OPTION.fullmatch(word) for word in words[:end])
    if not has_option or _SHOWN_INSTEAD.intersection(words[:end]):
        return list(words)
    chain, apps, _ = app.parse_commands(words)
    if not takes_model(apps[-1]):
        return list(words)
    start = len(chain)
    models, others = _taken_out(words[start:end])
    if len(models) > 1:
        given = " and ".join(map(repr, models))
        raise ConfigError(f"the model is given twice: {given}. Keep one.")
    return [*words[:start], *models, *others, *words[end:]]


def takes_model(command: App) -> bool:
    """Return whether the first positional argument of a command is the target model."""
    if command.default_command is None:
        return False
    arguments = command.assemble_argument_collection(parse_docstring=False)
    return any(argument.index == 0 and argument.name == MODEL for argument in arguments)


def _taken_out(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the values of the model option, and the words without this option."""
    models: list[str] = []
    others: list[str] = []
    remaining = iter(words)
    for word in remaining:
        option = _OPTION.fullmatch(word)
        if option is None:
            others.append(word)
            continue
        value = next(remaining, "") if option[2] is None else option[2]
        if not value or value.startswith("-"):
            raise ConfigError(f"{option[1]} has no value. Add a model, as in {option[1]} demo.")
        models.append(value)
    return models, others
