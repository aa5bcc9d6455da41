"""Define constants for recurrent mixers."""

from __future__ import annotations

MAX_SHORT_COLUMNS = 16
"""Maximum number of columns for which a mixer uses short chunks."""

SHORT_CHUNK = 16
"""Chunk size, in tokens, for short inputs; chunks of 256 would pad them to 256 tokens.

The result is the same up to rounding. In a test with 8 layers of Granite 4 H at the widths of a
0.8 B model, a forward pass over 8 tokens took 1.3 times as long as one over a single token. With
chunks of 256, it took 5.2 times as long.
"""

MAX_FED_AGAIN = 8
"""Maximum number of pending tokens that share a forward pass with a draft chain.

The limit applies to models that have recurrent states and verify only chains. If a draft token
is rejected, the recurrent states may not advance, and the next forward pass then processes all
pending tokens again. With more pending tokens, it takes less time to run a forward pass without a
draft first.
"""

ACTIVATIONS = {None: "", "silu": "silu", "swish": "silu"}
"""Activation functions of convolutions, by their names in transformers."""

MAX_REPLAYED_TOKENS = 32
"""Maximum number of tokens per request from which a commit computes the new states.

A batch with longer rows, such as a prefill chunk, keeps the states after the pending tokens. For
heads of 128 x 128 numbers, a state takes as much memory as the keys and updates of 64 tokens.
"""

ROW_MULTIPLE, LANE_MULTIPLE = 8, 16
"""Stored states are padded to multiples of these sizes, so that kernels need no partial vectors."""
