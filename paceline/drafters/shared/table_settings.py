"""Define the sizes of the table of cached next-token distributions.

Importing this module does not import the compiler.
"""

from __future__ import annotations

LONGEST_KEY = 4  # maximum length of the context of a cached distribution, in tokens
ROWS = 1 << 17  # default maximum number of cached distributions, which need 10 MB
MIN_CACHED_PROB = 0.001  # minimum probability of a cached next token
