"""Provide options, caches, files, threads and timing for all packages."""
