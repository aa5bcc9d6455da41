"""Implement lookahead parallelism, which divides draft trees among processes."""
