"""Define the consoles to which commands print, and show streamed answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from paceline.cli.settings import LOG_WIDTH

if TYPE_CHECKING:
    from paceline.core.metrics import Stats
    from paceline.llm import Chunk, Completion

INTERRUPTED = 130  # exit status after Ctrl-C


class _Stderr(Console):
    """Console for standard error that ignores write errors, so that commands continue."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print the objects; ignore write errors."""
        with suppress(OSError):
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Do nothing on a broken pipe.

        This method overrides rich's default handler, which would close standard output.
        """


out = Console(highlight=False, soft_wrap=True)
err = _Stderr(stderr=True, highlight=False, soft_wrap=True)
_GREEN, _PLAIN = "\x1b[32m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Shown:
    """The part of an answer that has been shown.

    Attributes:
        complete: False if Ctrl-C stopped the answer.
        stats: Statistics for a complete answer.
    """

    text: str
    complete: bool
    stats: Stats | None = None


def table_console(stderr: bool = False) -> Console | None:
    """Return the console for tables, or None for the terminal's default console.

    Tables that are written to files, pipes or standard error use a wide console.
    """
    return (
        None
        if sys.stdout.isatty() and not stderr
        else Console(width=LOG_WIDTH, highlight=False, stderr=stderr)
    )


def write(text: str, accepted: bool = False) -> None:
    """Print model output unchanged; on a terminal, accepted draft tokens are green."""
    coloured = accepted and sys.stdout.isatty() and not out.no_color
    sys.stdout.write(f"{_GREEN}{text}{_PLAIN}" if coloured else text)


def print_note(text: str) -> None:
    """Print a note to standard error, separate from the results."""
    err.print(Text(text, style="dim"))


def print_error(error: Exception | str) -> None:
    """Print an error to standard error as one line, wrapped only on a terminal."""
    line = " ".join(str(error).split())
    err.print(Text(f"error: {line}", style="red"), soft_wrap=not err.is_terminal)


def print_stream(chunks: Iterator[Chunk], end: str = "") -> Shown:
    """Show an answer while it is generated; Ctrl-C stops the answer.

    Args:
        end: Text to print after the answer if standard output is not a terminal. On a terminal, a
            line break is printed.
    """
    text, complete, stats = "", True, None
    try:
        for chunk in chunks:
            for text_part, accepted in chunk.pieces:
                write(text_part, accepted)
            sys.stdout.flush()
            text += chunk.text
            if chunk.completion is not None:
                _end(end)
                print_note(summary(chunk.completion))
                stats = chunk.completion.stats
    except KeyboardInterrupt:
        complete = False
        _end(end)
        print_note("stopped")
    finally:
        chunks.close()  # type: ignore[attr-defined]
    return Shown(text, complete, stats)


def _end(end: str) -> None:
    write("\n" if sys.stdout.isatty() else end)
    sys.stdout.flush()


def summary(completion: Completion) -> str:
    """Return one line of statistics about an answer."""
    stats = completion.stats
    return (
        f"[{stats.new_tokens} tokens, {stats.new_tokens / stats.seconds:.1f} tokens/s, "
        f"{stats.tokens_per_forward:.2f} tokens per forward, ended by {completion.finish_reason}, "
        f"{'' if stats.batch_invariant else 'not '}batch-invariant]"
    )
