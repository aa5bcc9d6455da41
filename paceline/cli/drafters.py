"""Implement the command `paceline drafters`."""

from __future__ import annotations

import dataclasses

from rich.table import Table
from rich.text import Text

from paceline.cli.show import out
from paceline.drafters import available, entry
from paceline.errors import ConfigError


def drafters() -> None:
    """List the drafters with their options and defaults.

    A drafter spec is a name with options, such as sssd:max_nodes=8,datastore=store. To use a class
    that is not part of paceline, write module:Class.
    """
    table = Table(box=None, pad_edge=False)
    for heading in ("drafter", "options and defaults", "what it does"):
        table.add_column(heading, overflow="fold")
    for name in available():
        try:
            drafter = entry(name)
            options = dataclasses.fields(drafter.options())
        except ConfigError as error:  # a broken drafter from another package
            table.add_row(name, "", Text(str(error)))
            continue
        needs = (
            " (needs --draft-model)"
            if drafter.needs_draft_model
            else " (needs datastore=PATH)"
            if drafter.needs_store
            else ""
        )
        table.add_row(
            name,
            " ".join(f"{option.name}={option.default}" for option in options),
            drafter.describe() + needs,
        )
    out.print(table)
