"""Implement speculative decoding with a small draft model."""
