"""The files that a command which measures leaves."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.options import flattened
from paceline.cli.show import print_note
from paceline.errors import ConfigError


@flattened("Files")
@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Where results go. Made before anything is measured, so that no result is lost to a wrong name.

    Attributes:
        json: write the results here.
        png: draw the results here.
        markdown: append a section about the results here.

    Raises:
        ConfigError: a folder that is not there.
    """

    json: Path | None = None
    png: Path | None = None
    markdown: Path | None = None

    def __post_init__(self) -> None:
        for path in self._paths():
            refuse_missing_folder(path)

    def write(self, json: Callable[[Path], None], png: Callable[[Path], None], section: Callable[[str | None], str]) -> None:
        """Write those that are wanted and name them on standard error.

        Args:
            json, png: write such a file.
            section: the Markdown text, given a link to the picture, relative to the Markdown file; None = no picture.
        Raises:
            ConfigError: a file cannot be written.
        """
        if self.json is not None:
            json(self.json)
        if self.png is not None:
            png(self.png)
        if self.markdown is not None:
            picture = None if self.png is None else os.path.relpath(self.png, self.markdown.parent)
            _append(self.markdown, section(picture))
        for path in self._paths():
            print_note(f"wrote {path}")

    def _paths(self) -> list[Path]:
        return [path for path in (self.json, self.png, self.markdown) if path is not None]


def refuse_missing_folder(path: Path | None) -> None:
    """Refuse a file to be written in a folder that is not there.

    Raises:
        ConfigError: there is no such folder.
    """
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}. Make it first.")


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error
