"""Attention by position by Intel's matrix instructions (AMX): sixteen queries in little more than
the time of one.

A query's output depends on itself and on the keys it sees, to the last bit, as in `kernel`; the
order of sums is another one:

- score of a query and a key: as `paceline.cpu.amx` multiplies them, 32 dims after the other; then
  the scaling;
- the largest score of all keys the query sees, and every score's exponential of its difference to
  that;
- their sum: lane l of sixteen sums those of the keys of rank l, l + 16, ... (rank 0 is the query's
  first key, by position); lanes l and l + 8 are added, l and l + 4, l and l + 2, 0 and 1; an
  attention sink's exponential comes last;
- every exponential as the sum of two numbers in bfloat16, which is as exact as 16 bits are;
- output of each dim: 32 ranks after the other, as `amx` multiplies them, the first numbers of a
  step, then the second ones; then the division.

The steps whose 32 keys all queries of a block see at the same ranks, those of the text before them,
are multiplied for all at once. For each column the others, with the nodes of its own path, are
gathered by rank: no query is multiplied by a key that it does not see, which may be no number.
These tiles have as many rows as a key head has query heads.

    kernel   parts of a call, taken by any number of threads          scores   scores of a block of
    queries, and weights of them room     a part, and a thread's memory for it
    sums     values by these weights
"""

from paceline.cpu.attention.tiled.kernel import attend_tiled, takes
from paceline.cpu.attention.tiled.workspace import lanes_of

__all__ = ["attend_tiled", "lanes_of", "takes"]
