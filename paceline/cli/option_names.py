"""Name options in error messages as the user types them.

A message of the library names `max_batch`; a command's message names `--max-batch`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cyclopts import App

from paceline.cli.options import SHORT
from paceline.drafters import available

# The name of a checked value, after the command or file to which it belongs.
_CHECKED = re.compile(r"^(?:(answers '[^']*': )|[A-Za-z][A-Za-z -]*: )?(\w+)(?=: )")
# A value that the message recommends: "(unpack=True)", "Pass seed=1", "or batch=2".
_ASSIGNED = re.compile(
    r"(^|\(|\b(?:pass|use|set|with|or|and|smaller|larger) )"
    r"""(\w+)=('[^']*'|[\w/-]+|\.\.\.)""",
    re.IGNORECASE,
)
_BARE = re.compile(r"""(?<![\w:,.'"=/-])([a-z]+(?:_[a-z]+)+)(?![\w'"=/:-]|\.\w)""")
_SWITCHES = {"True": "on", "False": "off"}


def with_option_names(message: str, program: App, words: Sequence[str]) -> str:
    """Return an error message with the options of a command instead of Python names.

    Messages about the options of a drafter do not change.

    Args:
        message: Message of an error.
        program: Application of the command line.
        words: Words of the command line after the program's name.
    """
    if message.partition(":")[0] in available() or " has no option " in message:
        return message
    options = _options(program, words)

    def checked(match: re.Match[str]) -> str:
        return (match[1] or "") + options[match[2]] if match[2] in options else match[0]

    def assigned(match: re.Match[str]) -> str:
        before, name, value = match.groups()
        if name not in options:
            return match[0]
        if value in _SWITCHES and f"no_{name}" in options:  # a flag takes no value
            return before + (f"--no-{options[name][2:]}" if value == "False" else options[name])
        typed = _SWITCHES.get(value, value.strip("'"))
        return f"{before}{options[name]} {typed}"

    message = _CHECKED.sub(checked, message)
    message = _ASSIGNED.sub(assigned, message)
    bare = {name: option for name, option in options.items() if name not in available()}
    return _BARE.sub(lambda match: bare.get(match[1], match[0]), message)


def _options(program: App, words: Sequence[str]) -> dict[str, str]:
    """Return the typed form of each option of a command, by Python name."""
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
