"""Settings of the `lookahead` drafter."""

from __future__ import annotations

EXTENDED_GUESSES = 2  # First guesses that the n-grams of the pool extend.
