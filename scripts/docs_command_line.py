"""Write the reference of the command line from the help of the commands.

`scripts/update_benchmarks.py` puts it between the marks of docs/reference/command-line.md.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console

from paceline.cli.commands import COMMANDS, GROUPS
from paceline.cli.help import HelpFormatter
from paceline.cli.main import app as paceline_app

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.help import HelpEntry, HelpPanel

_HELP = ("--help", "--version")


def command_line() -> str:
    """Return every command with its usage, example and options as Markdown."""
    lines = []
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in names:
            for words in _with_subcommands(name):
                lines += [f"### paceline {' '.join(words)}", "", *_command(words), ""]
    return "\n".join(lines).rstrip()


def overview() -> str:
    """Return a table of the commands with their summaries."""
    rows = [
        f"| [`{name}`](#paceline-{'-'.join(_with_subcommands(name)[0])}) | {title} |"
        f" {COMMANDS[name]} |"
        for title, names in GROUPS.items()
        for name in names
    ]
    return "\n".join(["| command | group | what it does |", "|---|---|---|", *rows])


def help_texts() -> Iterator[tuple[str, str, str]]:
    """Yield command, option and help text; the option is "" for a summary."""
    for names in GROUPS.values():
        for name in names:
            for words in _with_subcommands(name):
                recorder = _recorded(words)
                yield " ".join(words), "", recorder.text.partition("Example:")[0].strip()
                for entry in _entries(recorder):
                    label = entry.positional_label or entry.positive_names[0]
                    yield " ".join(words), label, _plain(entry.description)


class _Recorder(HelpFormatter):
    """A formatter that keeps the parts of a help text, and prints none."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.panels: list[HelpPanel] = []
        self.usage = ""
        self.text = ""

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:
        self.panels.append(panel)

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        self.usage = self._usage(str(usage))

    def render_description(self, console: Any, options: Any, text: Any) -> None:
        self.text = _plain(text)


def _with_subcommands(name: str) -> list[tuple[str, ...]]:
    command = paceline_app[name]
    below = [word for word in command if not word.startswith("-")]
    own = [(name,)] if command.default_command is not None else []
    return [*own, *((name, word) for word in below)]


def _command(words: tuple[str, ...]) -> list[str]:
    recorder = _recorded(words)
    text, _, example = recorder.text.partition("Example:")
    lines = [text.strip(), "", "```text", recorder.usage, "```", ""]
    if example:
        lines += ["Example:", "", "```sh", " ".join(example.split()), "```", ""]
    for panel in recorder.panels:
        entries = [entry for entry in panel.entries if entry in _entries(recorder)]
        if entries:
            lines += [f"**{panel.title}**", "", *map(_entry, entries), ""]
    return lines[:-1]


def _recorded(words: tuple[str, ...]) -> _Recorder:
    """Return the parts of the help of a command."""
    recorder = _Recorder(paceline_app)
    command = paceline_app
    for word in words:
        command = command[word]
    usual = command.help_formatter, paceline_app.help_formatter
    command.help_formatter = paceline_app.help_formatter = recorder
    try:
        paceline_app.help_print(list(words), console=Console(file=io.StringIO()))
    finally:
        command.help_formatter, paceline_app.help_formatter = usual
    return recorder


def _entries(recorder: _Recorder) -> list[HelpEntry]:
    """Return the arguments and options of a command."""
    return [
        entry
        for panel in recorder.panels
        if panel.title != "Commands"
        for entry in panel.entries
        if not set(_HELP) & set(entry.positive_names)
    ]


def _entry(entry: HelpEntry) -> str:
    names = [*entry.positive_names, *entry.negative_names, *entry.positive_shorts]
    if entry.positional_label:
        names = [entry.positional_label]
    elif entry.metavar and names:
        names = [f"{names[0]} {entry.metavar}", *names[1:]]
    parts = [", ".join(f"`{name}`" for name in names), ": ", _escaped(_plain(entry.description))]
    if entry.choices:
        parts.append(f" Choices: {', '.join(f'`{choice}`' for choice in entry.choices)}.")
    if entry.default is not None:
        parts.append(f" Default: `{entry.default}`.")
    if entry.required:
        parts.append(" Required.")
    return f"- {''.join(parts)}"


def _plain(text: Any) -> str:
    content = getattr(text, "primary_renderable", text)
    paragraphs = str(getattr(content, "plain", content) or "").strip().split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in paragraphs)


def _escaped(text: str) -> str:
    """Return a text whose characters Markdown takes literally, except code."""
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>|])", r"\\\1", part)
        for part in re.split(r"(`[^`]*`)", text)
    )
