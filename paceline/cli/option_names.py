"""Rewrite argument names in error messages as command-line options.

The library's messages name an argument, such as `max_batch`. A command shows the same message with
the option `--max-batch`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import App

from paceline.cli.options import SHORT
from paceline.errors import PacelineError

_SWITCHES = {"True": "on", "False": "off"}


def with_option_names(error: PacelineError, program: App, words: Sequence[str]) -> str:
    """Return the message of an error, naming options instead of library arguments.

    Args:
        error: Error whose message may name arguments. An argument without an option stays as it
            is.
        program: paceline's command-line app.
        words: Words of the command line after the program's name.
    """
    options = option_names(program, words) if len(error.parts) > 1 else {}
    return "".join(
        _typed(part, options) if number % 2 else part for number, part in enumerate(error.parts)
    )


def _typed(setting: str, options: dict[str, str]) -> str:
    """Return the option for a setting such as "LLM: max_batch" or "max_batch=1"."""
    name, _, value = setting.partition("=")
    name = name.rpartition(": ")[2]
    if name not in options:
        return setting
    if value in _SWITCHES and f"no_{name}" in options:  # a flag takes no value
        return f"--no-{options[name][2:]}" if value == "False" else options[name]
    value = _SWITCHES.get(value, value.strip("'"))
    return f"{options[name]} {value}".rstrip()


def option_names(program: App, words: Sequence[str]) -> dict[str, str]:
    """Map the Python name of each option of a command to the option that users type."""
    command = program.parse_commands(words)[1][-1]
    if command.default_command is None:
        return {}
    typed = {word.partition("=")[0] for word in words}
    options = {}
    for argument in command.assemble_argument_collection(parse_docstring=False):
        names = [name for name in argument.names if name.startswith("--") and argument.show]
        for name in names:
            key = name[2:].replace("-", "_")
            is_off = name.startswith("--no-")
            same = [other for other in names if other.startswith("--no-") == is_off]
            forms = [name, *same, SHORT.get(key, name)]
            options[key] = next((form for form in forms if form in typed), name)
    return options
