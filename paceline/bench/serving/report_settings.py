"""Define the settings of tables and plots of a load benchmark."""

from __future__ import annotations

WIDE_COLUMNS = 140  # Characters; narrower consoles show fewer columns.
TITLE_DENSITY = 26  # Characters of a title per inch.
COLUMN, ROW, FRAME = 4.2, 3.4, 0.6  # Inches.
