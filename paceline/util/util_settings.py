"""Define the limits of options."""

from __future__ import annotations

MAX_THREADS = 1024  # Maximum number of CPU threads; OpenMP crashes with many thousands.
