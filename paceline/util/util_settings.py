"""Settings of options."""

from __future__ import annotations

MAX_THREADS = 1024  # Maximum CPU threads; OpenMP crashes with many thousands.
