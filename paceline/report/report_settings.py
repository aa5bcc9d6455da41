"""Define the settings for plots and for shortening long prompts."""

from __future__ import annotations

LEGEND_DEPTH = -0.45  # Vertical offset of the legend from the axes in inches, below the axis label.
BAR_SHARE = 0.76  # Thickness of a group of bars, as a fraction of the distance between groups.
HEAD_TOKENS = 4  # Number of first tokens to keep in a shortened prompt: the chat template's start.
