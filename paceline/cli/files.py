"""Write the result files of measurement commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from paceline.cli.options import flattened
from paceline.cli.show import print_note, table_console
from paceline.errors import ConfigError
from paceline.util.files import STANDARD_OUTPUT, append, require_writable


@flattened("Files")
@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Result files, whose paths are checked before the run.

    Attributes:
        json: Write the results to this file as JSON; '-' writes them to standard output instead of
            the table. Default: none.
        png: Write a plot of the results to this file. Default: none.
        markdown: Append a section about the results to this Markdown file. Default: none.

    Raises:
        ConfigError: A file cannot be written, or more than one result goes to standard output.
    """

    json: Path | None = None
    png: Path | None = None
    markdown: Path | None = None

    def __post_init__(self) -> None:
        for path in self._paths():
            require_writable(path)
        if self._paths().count(STANDARD_OUTPUT) > 1:
            raise ConfigError(
                "files: only one result can go to standard output ('-'). Name files for the others."
            )

    def console(self) -> Console | None:
        """Return the console for tables: standard error if JSON goes to standard output."""
        return table_console(stderr=STANDARD_OUTPUT in self._paths())

    def write(
        self,
        json: Callable[[Path], None],
        png: Callable[[Path], None],
        section: Callable[[str | None], str],
    ) -> None:
        """Write the requested files, and list them on standard error.

        If one file cannot be written, the others are still written.

        Args:
            json, png: Functions that write the JSON file and the plot, given the path.
            section: Function that returns the Markdown text. Its argument is a relative link to the
                plot; None if there is no plot.
        Raises:
            ConfigError: A file cannot be written.
        """
        failed: ConfigError | None = None
        for path, write in (
            (self.json, json),
            (self.png, png),
            (self.markdown, lambda path: self._append(path, section)),
        ):
            if path is None:
                continue
            try:
                write(path)
            except ConfigError as error:
                failed = failed or error
                continue
            if path != STANDARD_OUTPUT:
                print_note(f"wrote {path}")
        if failed is not None:
            raise failed

    def _append(self, path: Path, section: Callable[[str | None], str]) -> None:
        picture = None if self.png is None else os.path.relpath(self.png, path.parent)
        append(path, f"{section(picture)}\n".encode())

    def _paths(self) -> list[Path]:
        return [path for path in (self.json, self.png, self.markdown) if path is not None]
