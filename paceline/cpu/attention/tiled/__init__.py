"""Compute batch-invariant attention with AMX tiles.

With AMX, sixteen queries take little more time than one. As in `attention.kernel`, a query's
output depends only on the query and on the keys that the query sees, bit for bit. A key's rank is
its index among the keys that the query sees, in text order. The order of summation differs from
`attention.kernel`:

- Score of a query and a key: AMX sums 32 dimensions at a time (see `amx` for the order). The
  kernel then multiplies the sum by the scaling factor, and adds the bias.
- Softmax: exp(score - largest score of all visible keys).
- Total weight: sixteen lanes sum the weights. Lane l sums the weights of the keys with rank l,
  l + 16, l + 32, and so on. The kernel then adds lanes l and l + 8, next l and l + 4, next l and
  l + 2, and finally 0 and 1. It adds the weight of an attention sink last.
- Softmax weights: the kernel stores each weight as two bfloat16 numbers, whose sum equals the
  weight to 16 significant bits.
- Output in each dimension: AMX sums 32 ranks at a time (see `amx` for the order). For every 32
  ranks, AMX first adds the products of the values and the weights' first bfloat16 numbers. It then
  adds the products of the values and the second numbers. The division by the total weight comes
  last.

Often, all queries of a block see the same leading keys, such as the text before a draft tree. Each
of these keys then has the same rank for every query. The kernel processes these keys in steps of
32, and computes the sums for all queries of the block at once.

The other keys include the nodes on a query's path. The kernel processes them for one column (query
token) at a time. It copies the values of the visible keys to a buffer, in the order of their ranks,
and multiplies the buffer by the weights. It never multiplies a weight by the value of a key that
the query does not see, because this value may be NaN. The AMX tiles of a column have one row for
each query head that shares the key head.

Modules: `kernel` processes tiles of queries, `scores` computes softmax weights, `sums` computes
weighted sums of values, and `workspace` lays out a thread's memory.
"""

from paceline.cpu.attention.tiled.kernel import attend_tiled, suits
from paceline.cpu.attention.tiled.workspace import queries_per_block

__all__ = ["attend_tiled", "queries_per_block", "suits"]
