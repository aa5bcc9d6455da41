"""Progress bars on standard error; into a file or a pipe nothing is written."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def progress_bar(*columns: str | ProgressColumn, shown: bool = True, auto_refresh: bool = True) -> Progress:
    """Return a bar that goes when it is done.

    Args:
        columns: of rich; none = its usual ones.
        shown: whether it is wanted at all.
        auto_refresh: redraw it from a thread of its own.
    """
    console = Console(stderr=True)
    disable = not shown or not console.is_terminal  # else rich ends it with an empty line
    return Progress(*columns, console=console, transient=True, auto_refresh=auto_refresh, disable=disable)
