"""The files that a command which measures leaves."""

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
    """Where results go. Made before anything is measured, so that no result is lost to a wrong
    name.

    Attributes:
        json: write the results here; '-' is standard output, in place of the table.
        png: draw the results here.
        markdown: append a section about the results here.

    Raises:
        ConfigError: a file that cannot be written, or two for standard output.
    """

    json: Path | None = None
    png: Path | None = None
    markdown: Path | None = None

    def __post_init__(self) -> None:
        for path in self._paths():
            require_writable(path)
        if self._paths().count(STANDARD_OUTPUT) > 1:
            raise ConfigError(
                "files: got '-' more than once; expected one result on standard output. Name files"
                " for the others."
            )

    def console(self) -> Console | None:
        """Return where tables are shown, as `table_console`: beside a result that has standard
        output to itself.
        """
        return table_console(stderr=STANDARD_OUTPUT in self._paths())

    def write(
        self,
        json: Callable[[Path], None],
        png: Callable[[Path], None],
        section: Callable[[str | None], str],
    ) -> None:
        """Write those that are wanted and name them on standard error; one that fails keeps no
        other from being written.

        Args:
            json, png: write such a file.
            section: the Markdown text, given a link to the picture, relative to the Markdown file;
                None = no picture.
        Raises:
            ConfigError: a file cannot be written.
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
