"""Define sizes and limits for files of recorded answers."""

from __future__ import annotations

CHECK_DIGITS = 16  # Number of hexadecimal digits in the checksum of a line.
DIGEST_BYTES = 8  # Number of bytes in a checksum in the file of top-k tokens.
TWO_BYTE_IDS = 1 << 16  # Token ids take two bytes for vocabularies up to this size, otherwise four.

# Maximum number of bytes in a first line. Files with a longer first line are of another type.
MAX_FIRST_LINE = 1 << 20
MAX_FIRST_TOP_LINE = 1 << 12
