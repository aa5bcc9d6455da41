"""Define constants for the KV cache."""

SPARE_POSITIONS = 64
"""Number of spare positions to add per slot when a forward pass needs a larger cache.

Spare positions make growth rare, because growing may copy the cache on some devices.
"""

MAX_SLOTS = 64
"""Number of slots for which a cache reserves address space if no limit is set."""

MAX_POSITIONS = 1 << 17
"""Number of positions per slot for which a cache reserves address space if no limit is set.

If a text needs more positions, the cache is copied to memory for twice the number that the text
needs.
"""

NODE_POSITIONS = 512
"""Number of cache positions per slot that are reserved for draft nodes after the longest text."""

CHECKPOINT_INTERVAL = 1024
"""Interval, in prompt tokens, at which the recurrent states of a request are saved.

If a prompt shares fewer tokens than this with an earlier prompt, the engine computes all tokens of
the prompt. The exception is a prompt that contains the whole earlier prompt or text.
"""

GRAPH_GROWTH_POSITIONS = 1024
"""Slots grow by multiples of this number of positions if forward passes are captured graphs."""

REGION_SLACK = 8
"""Number of needed positions in an extended region per additional spare position.

The spare positions reduce the number of regions that must move.
"""

POOL_GROWTH = 1.25
"""Factor by which the total number of positions grows at a time, so that growth is rare."""

GRAPH_POOL_GROWTH_POSITIONS = 4096
"""The total number of positions is a multiple of this number if slots differ in length.

The setting applies if forward passes are captured graphs and the cache is not preallocated, as for
draft models. In this case, every growth invalidates all graphs.
"""
