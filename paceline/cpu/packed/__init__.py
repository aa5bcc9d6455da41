"""Multiply with packed weights, and unpack their blocks."""
