"""Show progress bars on standard error if standard error is a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def progress_bar(
    *columns: str | ProgressColumn, shown: bool = True, auto_refresh: bool = True
) -> Progress:
    """Create a progress bar on standard error that disappears at the end.

    Args:
        columns: Columns of the bar, as for `rich.progress.Progress`. Default: rich's columns.
        shown: Whether to show the bar. The bar never appears if standard error is not a terminal.
        auto_refresh: Whether a background thread redraws the bar.
    """
    console = Console(stderr=True)
    disable = not shown or not console.is_terminal  # otherwise rich writes an empty line
    return Progress(
        *columns, console=console, transient=True, auto_refresh=auto_refresh, disable=disable
    )
