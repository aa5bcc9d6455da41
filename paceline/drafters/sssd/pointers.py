"""Match pointers: earlier occurrences of the newest tokens.

The request is 5 1 2 7 4 1 2, so its newest tokens are "1 2", and shard 0 of the datastore has ... 9
1 2 8 ...:

    request   place   0  1  2  3  4  5  6          shard 0   place   ...  37  38  39  40  ...
              token   5  1  2  7  4  1  2                    token   ...   9   1   2   8  ...
                               ^ follows "1 2"                                         ^ follows

    pointers of the root        place   shard     match   token
                                    3   REQUEST       2       7
                                   40   0             2       8

A node 7 below the root has the first of them, one token further (`evidence.advance`):

    pointers of the node 7      place   shard     match   token
                                    4   REQUEST       3       4
"""

from __future__ import annotations

from paceline.util.compiled import record_dtype

REQUEST = -1  # as shard: the request itself
SKIPPED = -(1 << 20)  # as match: agrees up to the token before the newest one
ENDS = -1  # as token: the text ends there


class Pointer:
    """Describe one earlier occurrence and the token that follows there."""

    place: int  # of the token that follows, in the request or in the text of the shard
    shard: int  # which shard of the datastore, or REQUEST
    # tokens up to the node that agree with what stands before the place; below 0: a hint (`hints`)
    match: int
    token: int  # the one that follows, or ENDS


class RankRange:
    """Hold the ranks [low, high) of matching suffixes in a shard's suffix array."""

    low: int
    high: int


POINTER = record_dtype(Pointer)
RANK_RANGE = record_dtype(RankRange)
