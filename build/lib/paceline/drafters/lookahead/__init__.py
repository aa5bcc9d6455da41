"""Implement Lookahead Decoding (Fu et al. 2024)."""
