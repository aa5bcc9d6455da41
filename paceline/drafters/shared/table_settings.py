"""Define the sizes of the table of cached next-token distributions.

This module can be imported without importing the compiler.
"""

from __future__ import annotations

LONGEST_KEY = 4  # maximum tokens of a context whose next-token distribution is cached
ROWS = 1 << 17  # default maximum number of cached distributions; 10 MB
MIN_CACHED_PROB = 0.001  # minimum probability of a token that is cached
