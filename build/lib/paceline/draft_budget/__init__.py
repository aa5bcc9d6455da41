"""Decide how many draft tokens to verify in a step."""
