"""Generate the tables of the pages that repeat a paper, from the sections of the summary."""

from __future__ import annotations

import re
from typing import Any

from benchmark_data import load, shell

# Sections with the published numbers next to the measured ones; the rest stays in the JSON files.
_SHOWN = {
    "lookahead": ("Figure 4", "Table 3", "Table 6"),
    "ouroboros": ("Table 1", "Table 2", "Table 3", "Table 4"),
    "specdec": ("Section 2.1", "Table 2", "Figure 4: The head's", "Table 1, measured"),
    "sssd": ("Figure 2, measured", "Section 3.2.1", "Figure 4a", "Section 4.2", "Figure 5"),
}
# A definition in a note: a label, usually a heading of the table, then a colon.
_LABEL = re.compile(r"(by Eq\. 2\.3|CPU time|CN|R2|S|[a-z][^.:;]{0,40}): ")
_BEFORE_LABEL = re.compile(rf"(?<=[.;]) (?={_LABEL.pattern})")


def paper_tables(name: str) -> str:
    """Return setting, tables, notes and command of a paper's summary."""
    result = load(name)
    paper = name.removeprefix("paper-").removesuffix("-smollm2")
    setting = "; ".join(result["setting"])
    lines = [f"*{setting[0].upper()}{setting[1:]}.*", ""]
    for section in result["sections"]:
        if section["title"].startswith(_SHOWN[paper]):
            lines += [f"**{section['title']}.**", "", *_table(section), ""]
            lines += [*(line for note in section["notes"] for line in _bullets(note)), ""]
    return "\n".join([*lines, "```sh", shell(result["command"]), "```"])


def _bullets(note: str) -> list[str]:
    """Return the lines of a note, one for each definition."""
    lines = []
    for part in _BEFORE_LABEL.sub("\n", note).split("\n"):
        found = _LABEL.match(part)
        text = f"*{found[1]}*: {part[found.end() :]}" if found else part
        lines.append(f"- {text.removesuffix(';').removesuffix('.')}.")
    return lines


def _table(section: dict[str, Any]) -> list[str]:
    columns = [column or "setting" for column in section["columns"]]
    rows = [
        [_cell(cell, column) for cell, column in zip(row, columns, strict=True)]
        for row in section["rows"]
    ]
    rule = "|---|" + "---:|" * (len(columns) - 1)
    return [_line(columns), rule, *map(_line, rows)]


def _cell(cell: Any, column: str) -> str:
    if isinstance(cell, list):
        if column.startswith("equal"):
            return f"{cell[0]} of {cell[1]}"
        first, *others = (_cell(entry, "") for entry in cell)
        rest = " ".join(other for other in others if other)
        return f"{first} ({rest})" if rest and rest != "*" else f"{first}{rest}"
    if not isinstance(cell, float):
        return "-" if cell is None else str(cell)
    digits = 0 if abs(cell) >= 100 else 1 if abs(cell) >= 10 else 2 if abs(cell) >= 0.1 else 3
    return f"{cell:.{digits}f}" if cell else "0"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
