"""Define the settings of the `lookahead` drafter."""

from __future__ import annotations

EXTENDED_GUESSES = 2  # Number of first guesses that are extended with n-grams from the pool.
