"""Define the settings of datastores, without importing compiled code."""

from __future__ import annotations

# Number of tokens that decide a suffix's rank in the suffix array; part of the file format.
# Suffixes that share all these tokens are in text order.
SORTED_TOKENS = 64

MAX_VOCAB_SIZE = 1 << 32  # Token ids take at most four bytes.
MAX_TEXT_SIZE = (1 << 31) - 1  # Tokens and separators per shard; positions are int32.

# Suffix sorting.
SHORT_RUN = 12  # Runs of at most this many suffixes are sorted by insertion.
MIN_BUCKETS = 1 << 12  # Buckets of the first tokens, for a small text with a large vocabulary.
MAX_BUCKETS = 1 << 22  # Buckets of the first tokens; more would cost memory but save little time.
PARTS_PER_WORKER = 16  # Parts of the suffix array per thread, so that all threads finish together.
MIN_PART_TOKENS = 1 << 14  # Smallest text per part; sorting a part takes a few milliseconds.

# Writing.
SORT_MEMORY = 2 << 30  # Bytes for sorting one shard.
# Bytes per token during a sort: 4 for the text, 4 for the suffix array, 4 for keys and spare room.
SORT_BYTES_PER_TOKEN = 12
MIN_SHARD_TOKENS = 1 << 10  # Smallest maximum size of a shard.
# A shard is merged with the next smaller shards unless it has this many times their tokens.
MERGE_RATIO = 4
# Share of the appended outputs that are dropped together, as a divisor of their maximum size.
DROP_SHARE = 4
MIN_ROOM = 1 << 16  # Minimum number of tokens by which a new shard's buffer grows.
ROOM_SHARE = 8  # Share by which this buffer grows, as a divisor of its size.
CONVERTED_TOKENS = 1 << 22  # Tokens converted to their width on disk at once.
HASHED_BYTES = 1 << 26  # Bytes mapped at once when reading a whole file; whole pages.
MAX_NAMED_PAGES = 16  # Maximum number of damaged pages that a report lists per shard.

# Online updates.
MIN_UPDATE_TOKENS = 4096  # Smallest maximum number of appended tokens on disk.
# Size in memory above which the oldest outputs are dropped, in units of `max_unwritten_tokens`.
MAX_TAIL_RATIO = 4
PAUSES_PER_SORT = 50  # Pause after a sort in memory, as a multiple of the time that the sort took.
LOCK_RETRY_S = 0.2  # Seconds before retrying to lock a store that another process is writing.
WRITE_RETRY_S = 10.0  # Seconds before retrying to write a store after a failed attempt.

# Reading.
FIRST_LENGTH = 4  # Length of the suffix that is looked up first, in tokens.
# Attempts to open all shards; a shard may be merged away after the manifest was read.
OPEN_ATTEMPTS = 10

# Input files.
TOKENIZED_TEXTS = 512  # Texts tokenized in one call.
TEXT_CHARACTERS = 1 << 20  # Number of characters of plain text in one document.
