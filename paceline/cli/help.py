"""Format command help with complete usage lines and rewrapped text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cyclopts import App
from cyclopts.help.formatters import DefaultFormatter
from rich.text import Text

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

_REQUIRED_OPTION = re.compile(r"--[\w-]+ [A-Z]+")


class HelpFormatter:
    """Formats help like cyclopts, but completes the usage line and rewraps text.

    Args:
        app: Application whose help is formatted.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._default = DefaultFormatter()

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print a table of arguments, options or commands."""
        entries = [
            entry.copy(description=_in_paragraphs(entry.description)) for entry in panel.entries
        ]
        self._default(console, options, panel.copy(entries=entries))

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """Print the usage line, naming every positional argument."""
        self._default.render_usage(console, options, Text(f"{self._usage(str(usage))}\n"))

    def render_description(self, console: Console, options: ConsoleOptions, text: Any) -> None:
        """Print the description of a command."""
        description = _in_paragraphs(text)
        if description.plain:
            console.print(description, end="\n\n")

    def _usage(self, usage: str) -> str:
        """Return a usage line such as "paceline generate MODEL [PROMPT...] [OPTIONS]".

        Args:
            usage: Usage line from cyclopts, in which optional arguments are unnamed.
        """
        program = self._app.name[0]
        words, command = [program], self._app
        for word in usage.removeprefix(program).split():
            if word not in list(command):
                break
            words.append(word)
            command = command[word]
        if command.default_command is None:
            return f"{' '.join(words)} COMMAND"
        arguments = [
            argument
            for argument in command.assemble_argument_collection(parse_docstring=False)
            if argument.show
        ]
        for argument in arguments:
            info = argument.field_info
            if info.kind is info.VAR_POSITIONAL or argument.index is not None:
                name = argument.name + "..." * (info.kind is info.VAR_POSITIONAL)
                words.append(name if argument.required else f"[{name}]")
        words += _REQUIRED_OPTION.findall(usage)
        if any(argument.name.startswith("-") and not argument.required for argument in arguments):
            words.append("[OPTIONS]")
        return " ".join(words)


def _in_paragraphs(text: Any) -> Text:
    """Join the lines of each paragraph, and separate paragraphs by blank lines."""
    content = getattr(text, "primary_renderable", text)  # of cyclopts' InlineText
    plain = content.plain if isinstance(content, Text) else str(content or "")
    return Text("\n\n".join(" ".join(part.split()) for part in plain.strip().split("\n\n")))
