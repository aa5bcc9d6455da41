"""Compute a step's draft tree in several processes (lookahead parallelism)."""
