"""Compute batch-invariant attention by AMX tiles.

Sixteen queries take little more time than one. As in `attention.kernel`, the bits of a query's
output depend only on the query and on the keys that it sees, but sums have another order:

- Score of a query and a key: as `amx` multiplies, 32 dims at a time; then the scaling.
- Softmax: exp(score - largest score of all keys that the query sees).
- Total weight: lane l of sixteen sums the weights of the keys of rank l, l + 16, ... Rank 0 is the
  first key that the query sees, by position. Lanes l and l + 8 are added, l and l + 4, l and l + 2,
  0 and 1. The weight of an attention sink comes last.
- Every weight is the sum of two bfloat16 numbers, which have 16 exact bits.
- Output of each dim: 32 ranks at a time, as `amx` multiplies them. The first numbers of a step come
  before the second ones; the division by the total is last.

All queries of a block see the first keys, those of the common text, at the same ranks. Whole steps
of 32 such keys are multiplied for the block at once. The other keys, with the nodes of the query's
path, are gathered by rank for each column. No query is multiplied by a key that it does not see:
that key may hold NaN. The tiles of a column have one row per query head of the key head.

The modules: `kernel` takes tiles of queries, `scores` computes weights, `sums` computes weighted
sums of values, and `workspace` lays out a thread's memory.
"""

from paceline.cpu.attention.tiled.kernel import attend_tiled, suits
from paceline.cpu.attention.tiled.workspace import queries_per_block

__all__ = ["attend_tiled", "queries_per_block", "suits"]
