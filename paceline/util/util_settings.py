"""Define limits and sizes for threads, garbage collection and frames."""

from __future__ import annotations

MAX_THREADS = 1024  # Maximum number of CPU threads; OpenMP crashes with many thousands.
# Number of new objects after which a command collects garbage. Imports and compilation create many
# permanent objects. With Python's default of 700, collections delay `generate` by 0.2 s.
YOUNG_OBJECTS = 20_000
# Size of a frame, in words of 8 bytes. A frame of just over half a megabyte makes Python allocate a
# chunk of 1 MB. The other half of the chunk has room for thousands of frames.
RESERVED_FRAME_WORDS = 70_000
