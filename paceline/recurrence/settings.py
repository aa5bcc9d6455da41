"""Define the constants of the recurrences that run in torch."""

NORM_EPS = 1e-6
"""Number added to the sum of squares when keys are normalised, as in flash-linear-attention."""
