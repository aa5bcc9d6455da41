"""Provide options, caches, files, threads and timings for all packages."""
