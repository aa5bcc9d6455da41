"""Provide options, caches, files, threads and timings to all rooms."""
