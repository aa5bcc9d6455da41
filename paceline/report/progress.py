"""Show progress bars on standard error, if it is a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def progress_bar(
    *columns: str | ProgressColumn, shown: bool = True, auto_refresh: bool = True
) -> Progress:
    """Return a progress bar that disappears at the end.

    Args:
        columns: Columns for rich. Default: rich's default columns.
        shown: Whether to show the bar if standard error is a terminal.
        auto_refresh: Whether to redraw the bar from a thread.
    """
    console = Console(stderr=True)
    disable = not shown or not console.is_terminal  # otherwise rich writes an empty line
    return Progress(
        *columns, console=console, transient=True, auto_refresh=auto_refresh, disable=disable
    )
