"""Define the settings of recordings, generated prompts and replay plots."""

from __future__ import annotations

MAX_TRIES = 4  # Texts that the model may write per requested prompt.
MIN_PROMPT_TOKENS = 8  # Context tokens that must be left for a prompt.
MAX_TOP = 64  # Maximum top-k tokens recorded per position.
TITLE_COLUMNS = 110  # Characters of a title line.
PANEL_WIDTH, PANEL_HEIGHT = 5.0, 4.2  # Inches.
