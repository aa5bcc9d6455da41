"""Define constants for the KV cache."""

SPARE_POSITIONS = 64
"""Extra cache positions that a slot gets when a forward pass outgrows the cache.

Growing copies the whole cache, so engines reserve their memory in advance.
"""

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
"""Factor by which the total number of positions grows. Growing copies all regions."""

GRAPH_POOL_GROWTH_POSITIONS = 4096
"""Granularity of the total number of positions if slots have different lengths.

It applies if forward passes are captured graphs, because growing invalidates all graphs.
"""
