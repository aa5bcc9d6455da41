"""Divide the computation of draft trees among processes (lookahead parallelism)."""
