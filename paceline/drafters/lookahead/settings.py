"""Define the settings of the `lookahead` drafter."""

from __future__ import annotations

EXTENDED_GUESSES = 2  # Number of guesses, from the first on, that further n-grams extend.
