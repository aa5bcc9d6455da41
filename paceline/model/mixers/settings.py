"""Define constants for recurrent mixers."""

from __future__ import annotations

MAX_SHORT_COLUMNS = 16
"""Largest number of columns for which a mixer with chunks uses short ones."""

SHORT_CHUNK = 16
"""Chunk size, in tokens, for short inputs; chunks of 256 would pad them to 256 tokens.

The result is the same up to rounding. Measured on 8 layers of Granite 4 H at the widths of a model
with 0.8 B parameters: a forward pass of 8 tokens takes 1.3 instead of 5.2 times the time of one
token.
"""

MAX_FED_AGAIN = 8
"""Largest number of pending tokens with which a chain is verified if states and attention cannot be
separated.

Such states advance only if a forward pass feeds no rejected token. Beyond this number, a forward
pass without drafts is cheaper than feeding the tokens again each time.
"""

ACTIVATIONS = {None: "", "silu": "silu", "swish": "silu"}
"""Activations of convolutions, by their names in transformers."""

MAX_REPLAYED_TOKENS = 32
"""Largest number of tokens of a request that a commit reads again to advance the stored states.

A batch with longer rows, such as a prefill chunk, keeps the states after the pending tokens. For
heads of 128 x 128 numbers, a state takes as much memory as the keys and updates of 64 tokens.
"""

ROW_MULTIPLE, LANE_MULTIPLE = 8, 16
"""Sizes of stored states are rounded up to these, so that compiled code reads whole vectors."""
