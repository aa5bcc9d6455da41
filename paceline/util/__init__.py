"""Provide helpers for options, caches, files, threads and timing."""
