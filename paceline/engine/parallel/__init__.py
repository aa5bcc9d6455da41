"""Compute the draft tree of a step in several processes (lookahead parallelism)."""
