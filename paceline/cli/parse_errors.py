"""Write error messages for invalid command lines: first the problem, then the fix."""

from __future__ import annotations

import types
from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from cyclopts import App, CycloptsError
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

_KINDS = {int: "an integer", float: "a number", bool: "true or false"}


def parse_error_text(error: CycloptsError, program: str, *, has_model_option: bool = False) -> str:
    """Return a command-line error as one or two sentences.

    Args:
        error: Error raised by cyclopts.
        program: Name of the program, such as "paceline".
        has_model_option: Whether the command line names the model through --model or -m. Default:
            False.
    """
    command = " ".join([program, *(error.command_chain or ())])
    see_help = f"See {command} --help."
    match error:
        case UnknownCommandError(unused_tokens=[word, *_], app=app) if app is not None:
            commands = [name for name in app if not name.startswith("-")]
            return f"Unknown command {word!r}.{_closest(word, commands)} {see_help}"
        case UnknownOptionError():
            return _unknown_option(error, command)
        case UnusedCliTokensError(unused_tokens=[word, *_]):
            if has_model_option:
                return (
                    f"Unexpected argument {word!r}: --model already names the model. Leave one of"
                    " them out."
                )
            if not _takes_words(error.app):
                return f"`{command}` takes no argument. Leave {word!r} out."
            return (
                f"Unexpected argument {word!r}. Leave it out, or put quotes around a value with"
                " spaces."
            )
        case MissingArgumentError() if error.argument is not None:
            return _missing(error, command)
        case RepeatArgumentError():
            return f"{error.token.keyword} is given twice. Keep one."
        case CoercionError(token=token) if token is not None and error.msg is None:
            argument = error.argument
            name = token.keyword or (argument.name if argument is not None else "argument")
            return f"{name}: got {token.value!r}; {_expected(token.value, error.target_type)}"
    return " ".join(str(error).split())


def _unknown_option(error: UnknownOptionError, command: str) -> str:
    option = (error.token.keyword or error.token.value).partition("=")[0]
    names = [
        name for argument in error.argument_collection if argument.show for name in argument.names
    ]
    hint = _closest(option, [name for name in names if name.startswith("-")])
    return f"Unknown option: {option}.{hint} See {command} --help."


def _missing(error: MissingArgumentError, command: str) -> str:
    argument = error.argument
    assert argument is not None, "checked by the caller"
    keywords = [error.keyword, *(token.keyword for token in argument.tokens)]
    option = next(filter(None, keywords), None)
    if option is None:
        _, _, subcommand = command.partition(" ")
        return f"{subcommand}: {argument.name} is missing. Add it; see {command} --help."
    form = f"{option}=VALUE"
    return f"{option} has no value. Add one; a value that begins with '-' is written {form}."


def _expected(value: str, kind: Any) -> str:
    """Describe the valid values, and name the valid value closest to `value`."""
    choices = [str(choice) for choice in get_args(kind)] if get_origin(kind) is Literal else []
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = list(kind.__members__)
    if choices:
        return f"expected one of {', '.join(choices)}.{_closest(value, choices)}"
    if get_origin(kind) in (Union, types.UnionType):
        kind = next((part for part in get_args(kind) if part in _KINDS), kind)
    return f"expected {_KINDS.get(kind, getattr(kind, '__name__', str(kind)))}."


def _closest(word: str, names: Iterable[str]) -> str:
    close = get_close_matches(word, list(names), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def _takes_words(command: App | None) -> bool:
    """Return whether a command has arguments other than options."""
    return command is None or any(
        argument.index is not None
        for argument in command.assemble_argument_collection(parse_docstring=False)
    )
