"""Speculative decoding with a small model."""
