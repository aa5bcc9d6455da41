"""Provide options, caches, files, threads and timing to all packages."""
