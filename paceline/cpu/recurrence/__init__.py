"""Compute recurrences along draft trees with compiled code."""
