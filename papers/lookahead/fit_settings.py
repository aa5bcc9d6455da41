"""Define settings for fitting the scaling law."""

from __future__ import annotations

GRID = 200  # Intervals of alpha in the first search.
REFINEMENTS = 40  # Steps of the golden-section search, a factor of 2e8 in all.
