"""Multiply by packed weights, and unpack their blocks."""
