"""Constants of the KV cache."""

SPARE_POSITIONS = 64
"""Cache positions that a slot gets beyond the needed ones when a forward pass outgrows the cache.

Growing copies the whole cache; engines reserve their memory beforehand.
"""

GRAPH_GROWTH_POSITIONS = 1024
"""Cache positions of which slots grow by a multiple if forward passes are captured graphs."""
