"""Define settings for the SpecDec++ paper's plot. Lengths are in inches."""

from __future__ import annotations

WIDTH = 12.0
FIGURE_4_ROW = 3.7  # Height of a row of panels.
BELOW = 3.7  # Minimum height of the other rows.
FRAME = 0.9
TABLE_1_ROW = 0.5  # Height of a row of table 1.
TITLE_COLUMNS = 165  # Characters of a title line.

SHOWN_SETS = 5  # Maximum sets of prompts with a panel.
PANELS_PER_ROW = 3
DISCARD_TICKS = (0, 0.2, 0.5, 1, 2, 3, 4, 6, 8, 10, 12, 14)
# target / draft forward, 1.5 to 96
COST_RATIOS = tuple(1.5 * 2 ** (step / 8) for step in range(49))
RATIO_TICKS = (2, 4, 8, 16, 32, 64)
MAX_TABLE_SETS = 4  # Maximum sets of prompts with columns in a table.
