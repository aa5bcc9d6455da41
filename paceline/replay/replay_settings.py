"""Define the settings of recordings, generated prompts and replay plots."""

from __future__ import annotations

MAX_TRIES = 4  # Maximum number of texts that the model generates per requested prompt.
MIN_PROMPT_TOKENS = 8  # Minimum number of context tokens that must remain for a prompt.
MAX_TOP = 64  # Maximum number of top-k tokens recorded per position.
TITLE_COLUMNS = 110  # Maximum number of characters per line of a plot's title.
PANEL_WIDTH, PANEL_HEIGHT = 5.0, 4.2  # Size of a panel in a plot, in inches.
