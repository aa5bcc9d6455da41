"""Compute recurrences through draft trees with compiled code."""
