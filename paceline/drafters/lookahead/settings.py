"""Define the settings of the `lookahead` drafter."""

from __future__ import annotations

EXTENDED_GUESSES = 2  # The first 2 guesses are extended with further n-grams from the pool.
