"""Where commands print, and how an answer is shown while it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from paceline.core.metrics import Stats
    from paceline.llm import Chunk, Completion

INTERRUPTED = 130  # exit status after Ctrl-C


class _Telling(Console):
    """Standard error. Where it cannot be written, nothing is told, and the work goes on."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, if that can be."""
        with suppress(OSError):
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Leave standard output alone, which rich would close."""


out = Console(highlight=False, soft_wrap=True)
err = _Telling(stderr=True, highlight=False, soft_wrap=True)
_GREEN, _PLAIN = "\x1b[32m", "\x1b[0m"
_LOG_WIDTH = 150  # of a table that goes to a file or a pipe


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer as far as it was shown; `complete`: to its end. `stats`: of one that came to its
    end by itself.
    """

    text: str
    complete: bool
    stats: Stats | None = None


def table_console(stderr: bool = False) -> Console | None:
    """Return where tables are shown: None, the terminal's own console, or a wide one for a file,
    a pipe or standard error.
    """
    return (
        None
        if sys.stdout.isatty() and not stderr
        else Console(width=_LOG_WIDTH, highlight=False, stderr=stderr)
    )


def write(text: str, accepted: bool = False) -> None:
    """Write what a model said to standard output, byte for byte; on a terminal, what came from a
    draft is green.
    """
    coloured = accepted and sys.stdout.isatty() and not out.no_color
    sys.stdout.write(f"{_GREEN}{text}{_PLAIN}" if coloured else text)


def print_note(text: str) -> None:
    """Print a line on standard error, so that it stands beside the results and not among them."""
    err.print(Text(text, style="dim"))


def print_error(error: Exception | str) -> None:
    """Print an error as one line on standard error; it wraps on a terminal only, and there at
    words.
    """
    line = " ".join(str(error).split())
    err.print(Text(f"error: {line}", style="red"), soft_wrap=not err.is_terminal)


def print_stream(chunks: Iterator[Chunk], end: str = "") -> Shown:
    """Show an answer as it comes; Ctrl-C ends it early.

    Args:
        end: what follows an answer that does not go to a terminal; there a new line begins in any
            case.
    """
    text, complete, stats = "", True, None
    try:
        for chunk in chunks:
            for piece, accepted in chunk.pieces:
                write(piece, accepted)
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
    """Return one line of figures for an answer."""
    stats = completion.stats
    return (
        f"[{stats.new_tokens} tokens, {stats.new_tokens / stats.seconds:.1f} tokens/s, "
        f"{stats.tokens_per_forward:.2f} tokens per forward, ended by {completion.finish_reason}, "
        f"{'' if stats.batch_invariant else 'not '}batch-invariant]"
    )
