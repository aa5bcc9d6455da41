"""Define match pointers, which lead to earlier occurrences of the newest tokens.

For example, let the request be 5 1 2 7 4 1 2, so that its newest tokens are "1 2". Shard 0 of the
datastore contains the text ... 9 1 2 8 ..., starting at position 37.

    request    position:  0  1  2  3  4  5  6      shard 0    position:  ...  37  38  39  40  ...
               token:     5  1  2  7  4  1  2                 token:     ...   9   1   2   8  ...
                                   ^ follows "1 2"                           follows "1 2" ^

    pointers of the root    position   shard     match   token
                                   3   REQUEST       2       7
                                  40   0             2       8

The child of the root with token 7 inherits the first of these pointers, advanced by one token
(`request_matches.advance`):

    pointers of the node 7    position   shard     match   token
                                     4   REQUEST       3       4
"""

from __future__ import annotations

from paceline.util.compiled import record_dtype

REQUEST = -1  # Value of `shard` for a position in the request itself.
SKIPPED = -(1 << 20)  # Value of `match` if only the tokens before the newest token match.
ENDS = -1  # Value of `token` if the text ends at the position.
UNREADABLE = -2  # Value of `token` if the page is damaged.


class Pointer:
    """An earlier occurrence of a node's newest tokens, and the token that follows it.

    A node's newest tokens are the last tokens of the request, followed by the path to the node.

    Attributes:
        position: Position directly after the occurrence, in the request or in the shard's text.
        shard: Index of the shard in the datastore, or REQUEST.
        match: Number of tokens before the position that equal the newest tokens; negative for a
            weak match (`weak_matches`).
        token: Token at the position; ENDS at the end of a text.
    """

    position: int
    shard: int
    match: int
    token: int


class RankRange:
    """The range of matching suffixes in a shard's suffix array.

    Attributes:
        low: Rank of the first matching suffix.
        high: Rank after the last matching suffix.
    """

    low: int
    high: int


POINTER = record_dtype(Pointer)
RANK_RANGE = record_dtype(RankRange)
