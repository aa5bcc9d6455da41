"""Define the settings for plots and for shortening long prompts."""

from __future__ import annotations

LEGEND_DEPTH = -0.45  # Inches from the axes down to below the axis label.
BAR_SHARE = 0.76  # Thickness of a group of bars over the distance to the next group.
HEAD_TOKENS = 4  # First tokens kept of a prompt that is too long: the start of the chat template.
