"""Define sizes and limits for files of recorded answers."""

from __future__ import annotations

CHECK_DIGITS = 16  # Hexadecimal digits of the checksum in a line of answers.
DIGEST_BYTES = 8  # Bytes of a checksum in a file of top-k tokens.
TWO_BYTE_IDS = 1 << 16  # Vocabularies up to this size have two-byte ids.

# Maximum number of bytes in a first line. A longer one belongs to another kind of file.
MAX_FIRST_LINE = 1 << 20
MAX_FIRST_TOP_LINE = 1 << 12
