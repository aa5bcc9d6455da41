"""Decide how many draft tokens a step verifies."""
