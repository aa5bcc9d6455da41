"""Define constants for the KV cache."""

SPARE_POSITIONS = 64
"""Extra cache positions that a slot gets when a forward pass outgrows the cache.

Each growth may copy the cache on devices without lazy memory.
"""

MAX_SLOTS = 64
"""Number of slots for which a cache reserves address space if no engine limits it."""

MAX_POSITIONS = 1 << 17
"""Maximum number of positions per slot for which such a cache reserves address space.

A slot for more tokens is copied once it exceeds them, to a cache of twice the size.
"""

NODE_POSITIONS = 512
"""Positions per slot beyond the longest text, for draft nodes, for which a cache has memory."""

CHECKPOINT_INTERVAL = 1024
"""Number of prompt tokens after which the recurrent states of a request are copied.

If a prompt shares fewer tokens with an earlier one, it is computed from its start, unless it
contains the whole earlier prompt or text.
"""

GRAPH_GROWTH_POSITIONS = 1024
"""Slots grow by a multiple of this number of positions if forward passes are captured graphs."""

REGION_SLACK = 8
"""A region that is too short gets one spare position per this many, so that few regions move."""

POOL_GROWTH = 1.25
"""Factor by which the total number of positions grows. Spare positions make moves rare."""

GRAPH_POOL_GROWTH_POSITIONS = 4096
"""Granularity of the total number of positions if slots have different lengths.

It applies if forward passes are captured graphs and the cache is not preallocated, as for draft
models: growing then invalidates all graphs.
"""
