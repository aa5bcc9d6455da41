"""Constants of the KV cache."""

SPARE_POSITIONS = 64
"""Cache positions that a slot gets beyond the needed ones when a forward pass outgrows the cache.

Growing copies the whole cache; engines reserve their memory beforehand.
"""
