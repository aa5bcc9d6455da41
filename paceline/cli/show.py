"""Where commands print, and how an answer is shown while it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from paceline.llm import Chunk, Completion

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
_ACCEPTED = "green"
_LOG_WIDTH = 150  # of a table that goes to a file or a pipe


def table_console() -> Console | None:
    """Return where tables are shown: None, the terminal's own console, or a wide one for a file or a pipe."""
    return None if sys.stdout.isatty() else Console(width=_LOG_WIDTH, highlight=False)


def print_note(text: str) -> None:
    """Print a line on standard error, so that it stands beside the results and not among them."""
    err.print(Text(text, style="dim"))


def print_error(error: Exception | str) -> None:
    """Print an error as one line on standard error; it wraps on a terminal only, and there at words."""
    err.print(Text(f"error: {error}", style="red"), soft_wrap=not err.is_terminal)


def print_stream(chunks: Iterator[Chunk]) -> str:
    """Show an answer as it comes, and return its text; Ctrl-C ends it early."""
    text = ""
    try:
        for chunk in chunks:
            for piece, accepted in chunk.pieces:
                out.print(Text(piece, style=_ACCEPTED if accepted else ""), end="")
            out.file.flush()
            text += chunk.text
            if chunk.completion is not None:
                out.print()
                print_note(summary(chunk.completion))
    except KeyboardInterrupt:
        out.print()
        print_note("stopped")
    finally:
        chunks.close()  # type: ignore[attr-defined]
    return text


def summary(completion: Completion) -> str:
    """Return one line of figures for an answer."""
    stats = completion.stats
    return (
        f"[{stats.new_tokens} tokens, {stats.new_tokens / stats.seconds:.1f} tokens/s, "
        f"{stats.tokens_per_forward:.2f} tokens per forward, ended by {completion.finish_reason}]"
    )
