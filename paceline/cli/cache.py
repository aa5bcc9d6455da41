"""Implement the commands `paceline cache list` and `paceline cache clear`."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from paceline.cli.options import command_group
from paceline.cli.show import out, print_note, table_console

cache = command_group("cache")


@cache.command(name="list")
def list_entries() -> None:
    """List the cache entries with their sizes and ages, oldest first.

    The environment variable PACELINE_CACHE sets the cache folder. The default is ~/.cache/paceline.
    """
    from paceline.util import cache as store

    entries = store.entries()
    table = Table(box=None, pad_edge=False)
    for heading in ("source", "MB", "created", "folder"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        table.add_row(
            Path(entry.card["source"]).name,
            f"{entry.size / 1e6:.1f}",
            str(entry.card["made"]),
            str(entry.folder),
        )
    if entries:
        (table_console() or out).print(table)
    print_note(
        f"{len(entries)} folders, {sum(entry.size for entry in entries) / 1e6:.1f} MB, in"
        f" {store.root()}"
    )


@cache.command(name="clear")
def clear_entries() -> None:
    """Remove all cache entries, except those being written by another process."""
    from paceline.util import cache as store

    print_note(f"{store.clear() / 1e6:.1f} MB removed from {store.root()}")
