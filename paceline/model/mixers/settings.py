"""Define constants for recurrent mixers."""

from __future__ import annotations

MAX_SHORT_COLUMNS = 16
"""Maximum number of columns for which a mixer uses short chunks."""

SHORT_CHUNK = 16
"""Chunk size, in tokens, for short inputs; chunks of 256 would pad them to 256 tokens.

The result is the same up to rounding. Measured on 8 layers of Granite 4 H at the widths of a model
with 0.8 B parameters, a forward pass over 8 tokens takes 1.3 times as long as one over a single
token, instead of 5.2 times.
"""

MAX_FED_AGAIN = 8
"""Maximum number of pending tokens for verifying a chain if states depend on attention.

Such states advance only if no draft token is rejected. With more pending tokens, a forward pass
without drafts takes less time than processing the tokens again and again.
"""

ACTIVATIONS = {None: "", "silu": "silu", "swish": "silu"}
"""Activations of convolutions, by their names in transformers."""

MAX_REPLAYED_TOKENS = 32
"""Maximum number of tokens per request that a commit reads again to advance the states.

A batch with longer rows, such as a prefill chunk, keeps the states after the pending tokens. For
heads of 128 x 128 numbers, a state takes as much memory as the keys and updates of 64 tokens.
"""

ROW_MULTIPLE, LANE_MULTIPLE = 8, 16
"""Sizes of stored states are rounded up to these multiples, so that vectors are complete."""
