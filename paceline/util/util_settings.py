"""Define the limits of option values."""

from __future__ import annotations

MAX_THREADS = 1024  # Maximum number of CPU threads; OpenMP crashes with many thousands.
# Number of new objects after which a command collects garbage. Imports and compilation create many
# lasting objects: with Python's default of 700, collections take 0.2 s at each start of `generate`.
YOUNG_OBJECTS = 20_000
# Size of a frame in words of 8 bytes. Just above half a megabyte, it makes Python allocate a chunk
# of 1 MB, whose other half has room for thousands of frames.
RESERVED_FRAME_WORDS = 70_000
