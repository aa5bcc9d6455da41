"""Define the constants of `lookahead` that are not options."""

from __future__ import annotations

EXTENDED_GUESSES = 2  # Number of guesses that are extended with further n-grams.
