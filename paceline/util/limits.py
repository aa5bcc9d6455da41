"""Words and numbers that options are checked by and compiled code is built with: here, so that
options need no compiler.
"""

from __future__ import annotations

EMBEDDED = "demo"  # the word for the store of the embedded models
# tokens of a suffix that its place in a store depends on; suffixes equal so far stand in text order
SORTED = 64
LONGEST_KEY = 4  # tokens under which what the target said is kept
ROWS = 1 << 17  # of the table of what it said: 14 MB
