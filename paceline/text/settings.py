"""Define the constants used to decode and tokenise text."""

from __future__ import annotations

# For tokenizers without fixed spellings: number of preceding tokens that may affect a token's text.
WINDOW_TOKENS = 8

# Maximum number of tokens whose text may still change, such as a long run of incomplete characters.
MAX_OPEN_TOKENS = 8 * WINDOW_TOKENS

# An embedding may have padding rows. The limit is the larger of two numbers: MAX_PADDING_ROWS (but
# at most the number of tokens), and one row per TOKENS_PER_PADDING_ROW tokens. The second number
# admits a published model with 102,400 rows for 100,015 tokens.
MAX_PADDING_ROWS = 1024
TOKENS_PER_PADDING_ROW = 32

# If the draft model has another tokenizer, the last characters of a text are tokenised in every
# step. When they exceed the maximum, all but about the minimum become final. Tokens rarely span
# that many characters.
MAX_TAIL_CHARACTERS = 400
MIN_TAIL_CHARACTERS = 100
