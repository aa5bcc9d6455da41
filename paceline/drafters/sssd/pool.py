"""Store the match pointers of a draft tree, and the text to match.

A match pointer leads to an earlier occurrence of the newest tokens; see the module `pointers`. The
pool stores the pointers node by node. The pool's tail contains the text to match: the newest tokens
of the request, followed by the path to the current node. For example, let LONGEST be 32, the
request be 5 1 2 7 4 1 2, and the path to the node be 7 4:

    index == 0 ... 24   25  26  27  28  29  30  31   32  33
    tail  == unused      5   1   2   7   4   1   2    7   4
                       <------- context: 7 -------> < depth: 2 >

The query of this node is tail[25:34], so the query begins at 25 and ends at 34. For the root, the
search looks up suffixes of the query, from long to short, in the request (`request_matches`) and
in the datastore (`store_matches`). Any other node inherits those pointers of its parent that lead
to the node's token. If there are too few such pointers, the search looks up shorter suffixes of the
node's query.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import Query, ShardRow
from paceline.drafters.sssd.pointers import POINTER, RANK_RANGE, Pointer
from paceline.drafters.sssd.request_index import RequestText
from paceline.drafters.sssd.settings import LONGEST, STORE_SIZES
from paceline.util.compiled import Records, compiled, kernel


class Sources(NamedTuple):
    """The texts to search: a request, and a datastore with recent answers.

    Attributes:
        text: Text of the request.
        table: Shards of the datastore and of the recent answers, [shards].
    """

    text: RequestText
    table: Records[ShardRow]


class PointerRange(NamedTuple):
    """A range of match pointers in a pool.

    Attributes:
        begin: Index of the first pointer.
        end: Index after the last pointer.
    """

    begin: int
    end: int


class Pool(NamedTuple):
    """The match pointers of all nodes of a tree, and scratch arrays for the search.

    Attributes:
        pointers: Pointers of all nodes, node by node, [room].
        scratch: Buffer for the pointers of one look-up, [max_matches].
        ranges: For each suffix of the text to match, the range of the suffix's matches in each
            shard's suffix array, [len(STORE_SIZES), shards].
        totals: Number of matches of each suffix in all shards, [len(STORE_SIZES)].
        tail: Text to match: the last LONGEST tokens of the request, followed by the path to a
            node, [LONGEST + depth].
        votes: For each distance d, the number of votes that the next token repeats the token d
            positions earlier (`weak_matches`), [LONGEST].
    """

    pointers: Records[Pointer]
    scratch: Records[Pointer]
    ranges: Any
    totals: NDArray[np.int64]
    tail: NDArray[np.int64]
    votes: NDArray[np.int64]


@compiled
def new_pool(room: int, max_matches: int, depth: int, shards: int) -> Pool:
    """Allocate a pool for the match pointers of one draft tree.

    Args:
        room: Maximum number of match pointers.
        max_matches: Maximum number of matches in one look-up.
        depth: Maximum depth of the tree.
        shards: Number of shards of the datastore and of the recent answers.
    """
    return Pool(
        np.empty(room, dtype=POINTER),
        np.empty(max_matches, dtype=POINTER),
        np.empty((len(STORE_SIZES), shards), dtype=RANK_RANGE),
        np.empty(len(STORE_SIZES), dtype=np.int64),
        np.empty(LONGEST + depth, dtype=np.int64),
        np.empty(LONGEST, dtype=np.int64),
    )


@kernel
def put(pool: Pool, count: int, position: int, shard: int, match: int, token: int) -> int:
    """Append a match pointer to the pool; return the new number of pointers.

    The pool must not be full.

    Args:
        pool: Pool to append to.
        count: Number of pointers in the pool.
        position: Position directly after the match.
        shard: Index of the shard that contains the match, or REQUEST.
        match: Length of the match in tokens; negative for a weak match.
        token: Token at the position.
    """
    pointer = pool.pointers[count]
    pointer.position, pointer.shard, pointer.match, pointer.token = position, shard, match, token
    return count + 1


@kernel
def copy_newest(text: RequestText, pool: Pool) -> int:
    """Copy the request's newest tokens to `pool.tail`, and return their number."""
    context = min(text.length, LONGEST)
    for index in range(context):
        pool.tail[LONGEST - context + index] = text.ids[text.length - context + index]
    return context


@kernel
def query_of(pool: Pool, context: int, depth: int) -> Query:
    """Return a node's query: the tokens whose earlier occurrences are searched for.

    The query consists of the request's newest tokens and the path to the node.

    Args:
        pool: Pool whose tail contains these tokens.
        context: Number of newest tokens of the request.
        depth: Number of tokens on the path to the node.
    """
    return Query(pool.tail, LONGEST - context, LONGEST + depth)
