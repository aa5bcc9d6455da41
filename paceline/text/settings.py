"""Define the constants used to decode and tokenise text."""

from __future__ import annotations

# Tokens before a token that its text may depend on, for tokenizers without fixed spellings.
WINDOW_TOKENS = 8

# Tokens whose text may stay undecided at most, such as a long run of unfinished characters.
MAX_OPEN_TOKENS = 8 * WINDOW_TOKENS

# Maximum padding of an embedding in rows: the first number, but no more than there are tokens, or
# one row per this many tokens. The second covers a published model with 102,400 rows for 100,015
# tokens.
MAX_PADDING_ROWS = 1024
TOKENS_PER_PADDING_ROW = 32

# Newest characters of a text that are tokenised again for a draft model with another tokenizer.
# Beyond the maximum, all but about the minimum become final; tokens rarely span that many.
MAX_TAIL_CHARACTERS = 400
MIN_TAIL_CHARACTERS = 100
