"""The commands around what is kept between runs: `paceline cache list | clear`."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App
from rich.table import Table

from paceline.cli.show import out, print_note, table_console

cache = App(
    name="cache",
    help="Converted models and proofs that are kept between runs, below PACELINE_CACHE"
    " (~/.cache/paceline).",
)


@cache.command(name="list")
def list_entries() -> None:
    """List what is kept, the oldest first."""
    from paceline.util import cache as store

    found = store.entries()
    table = Table(box=None, pad_edge=False)
    for heading in ("what", "MB", "made", "folder"):
        table.add_column(heading, overflow="fold")
    for entry in found:
        table.add_row(
            Path(entry.card["source"]).name,
            f"{entry.size / 1e6:.1f}",
            str(entry.card["made"]),
            str(entry.folder),
        )
    if found:
        (table_console() or out).print(table)
    print_note(
        f"{len(found)} folders, {sum(entry.size for entry in found) / 1e6:.1f} MB, in"
        f" {store.root()}"
    )


@cache.command(name="clear")
def clear_entries() -> None:
    """Remove everything that is kept, except what another process is making at this moment."""
    from paceline.util import cache as store

    print_note(f"{store.clear() / 1e6:.1f} MB removed from {store.root()}")
