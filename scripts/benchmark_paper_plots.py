"""Draw one figure of each paper from its summary in docs/results.

The curves show the built-in model, of which there are more prompts than of SmolLM2.
"""

from __future__ import annotations

from typing import Any

from benchmark_data import load
from benchmark_drawing import bars, curves


def lookahead() -> str:
    """Draw tokens per forward pass over the window, as figure 4 of the paper."""
    section = _section("paper-lookahead", "Figure 4")
    return curves(
        "Lookahead Decoding, figure 4: tokens per forward pass, built-in model",
        "window W = number of guesses G",
        [name.removeprefix("W = ") for name in section["columns"][1:]],
        {row[0]: [cell[0] for cell in row[1:]] for row in section["rows"]},
    )


def ouroboros() -> str:
    """Draw tokens per forward pass of the methods of table 2 of the paper."""
    results = {"SmolLM2": "paper-ouroboros-smollm2", "built-in models": "paper-ouroboros"}
    tables = [_section(name, "Table 2, figure 4") for name in results.values()]
    column = tables[0]["columns"].index("S")
    return bars(
        "Ouroboros, table 2: tokens per forward pass",
        list(results),
        [
            (rows[0][0], [row[column] for row in rows])
            for rows in zip(*(table["rows"] for table in tables), strict=True)
        ],
        unit="",
    )


def specdec() -> str:
    """Draw the best fixed length and SpecDec++, as table 1 of the paper."""
    rows = [
        (f"{where}, {row[0]}", [row[4], row[7]])
        for where, name in (
            ("SmolLM2", "paper-specdec-smollm2"),
            ("built-in", "paper-specdec"),
        )
        for row in _section(name, "Table 1, measured")["rows"]
        if not row[0].startswith("paper")
    ]
    rows += [
        (row[0], [row[4], row[7]])
        for row in _section("paper-specdec", "Table 1, measured")["rows"]
        if row[0].startswith("paper")
    ]
    return bars(
        "SpecDec++, table 1: speed over plain decoding",
        ["best fixed length", "SpecDec++"],
        rows,
    )


def sssd() -> str:
    """Draw tokens per step by source, as figure 4a of the paper."""
    section = _section("paper-sssd", "Figure 4a")
    names = {
        "both": "request and datastore",
        "request": "request",
        "both, paper's": "both, paper's weights",
        "request, paper's": "request, paper's weights",
    }
    return curves(
        "SSSD, figure 4a: tokens per step by source, built-in model",
        "query tokens per step",
        [str(row[0]) for row in section["rows"]],
        {
            label: [row[section["columns"].index(name)] for row in section["rows"]]
            for name, label in names.items()
        },
    )


def _section(name: str, title: str) -> dict[str, Any]:
    """Return the last section with this title; the last one shows this implementation."""
    sections = [part for part in load(name)["sections"] if part["title"].startswith(title)]
    section: dict[str, Any] = sections[-1]
    return section
