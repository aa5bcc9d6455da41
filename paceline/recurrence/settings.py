"""Constants of the torch recurrences."""

NORM_EPS = 1e-6
"""Addend of the sum of squares by which keys are normalised, as in flash-linear-attention."""
