"""Lookahead Decoding."""
