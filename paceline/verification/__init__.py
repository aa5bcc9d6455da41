"""Verify draft tokens: decide which of them the target accepts."""
