"""Constants of the KV cache."""

SPARE_POSITIONS = 64
"""Cache positions that a slot gets beyond the needed ones when a forward pass outgrows the cache.

Growing copies the whole cache; engines reserve their memory beforehand.
"""

CHECKPOINT_INTERVAL = 1024
"""Number of prompt tokens after which the recurrent states of a request are copied.

A prompt that shares less than this with an earlier one is computed from its start, unless it
contains the whole earlier prompt or text.
"""

GRAPH_GROWTH_POSITIONS = 1024
"""Cache positions of which slots grow by a multiple if forward passes are captured graphs."""
