"""Compute batch-invariant attention with AMX tiles.

With AMX, sixteen queries take little more time than one. As in `attention.kernel`, a query's
output depends only on the query and on the keys that the query sees, bit for bit. The order of
summation is different:

- Score of a query and a key: AMX sums 32 dimensions at a time (see `amx` for the order). The
  scaling and then the bias follow.
- Softmax: exp(score - largest score of all visible keys).
- Total weight: lane l of sixteen sums the weights of the keys with rank l, l + 16, ... Rank 0 is
  the first visible key in text order. Then lanes l and l + 8 are added, next l and l + 4, next l
  and l + 2, and finally 0 and 1. The weight of an attention sink is added last.
- Every weight is stored as the sum of two bfloat16 numbers, and so has 16 exact bits.
- Output in each dimension: AMX sums 32 ranks at a time (see `amx` for the order). For every 32
  ranks, AMX first adds the products of the values and the weights' first bfloat16 numbers, and then
  the products with the second numbers. The division by the total weight comes last.

A leading key that all queries of a block see has the same rank for all these queries. In steps of
32 such keys, the sums are computed for all queries of the block at once. The values of the other
keys, including the nodes on the query's path, are gathered by rank for each column (query token).
No weight is multiplied by the value of a key that the query does not see, because that value may be
NaN. The tiles of a column have one row for each query head that shares the key head.

Modules: `kernel` processes tiles of queries, `scores` computes weights, `sums` computes weighted
sums of values, and `workspace` lays out a thread's memory.
"""

from paceline.cpu.attention.tiled.kernel import attend_tiled, suits
from paceline.cpu.attention.tiled.workspace import queries_per_block

__all__ = ["attend_tiled", "queries_per_block", "suits"]
