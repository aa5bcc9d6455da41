"""Define the limits of option values."""

from __future__ import annotations

MAX_THREADS = 1024  # Maximum number of CPU threads; OpenMP crashes with many thousands.
