"""Compute a decoder layer in one compiled call."""
