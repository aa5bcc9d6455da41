"""Define constants for the KV cache."""

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

REGION_SLACK = 8
"""A region that becomes too short grows by one position for this many, so that few regions move."""

POOL_GROWTH = 1.25
"""Factor by which the positions of all regions grow. Growing copies them."""

GRAPH_POOL_GROWTH_POSITIONS = 4096
"""Cache positions of all slots together of which slots of different lengths grow by a multiple.

It applies if forward passes are captured graphs, because growing ends the use of all graphs.
"""
