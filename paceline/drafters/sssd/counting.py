"""Count a node's match pointers (`pointers`), grouped by next token and by source.

A match pointer is the position after an earlier match of the newest tokens. Matches are counted by
source (prompt, output, or datastore) and by length band: 1, 2, 3, 4-5, 6-8, 9-15, or 16 and more
tokens. Weak matches (`weak_matches`) are counted separately. In this example, a node has three
match pointers; "match" is the number of matching tokens:

    position   shard     match   token   source
    ========   =======   =====   =====   ====================================
    3          REQUEST   2       7       prompt (position 3 is in the prompt)
    9          REQUEST   2       8       output (position 9 is in the answer)
    40         0         5       8       store (shard 0 of the datastore)

The pointers lead to two different tokens, 7 and 8. The next table shows the fields of
`PointerCounts` and `NodeCounts`. A triple contains the values for prompt, output and store:

    counts      token   by_band                        longest     nearest   tokens
    =========   =====   ============================   =========   =======   =========
    tokens[0]   7       [prompt, band of 2]: 1         (2, 0, 0)   3
    tokens[1]   8       [output, band of 2]: 1,        (0, 2, 5)   9
                        [store, band of 5]: 1
    node                the sums of both tokens        (2, 2, 5)             (1, 1, 1)
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.origin import Origin
from paceline.datastore.rows import ShardRow
from paceline.drafters.sssd.pointers import REQUEST, SKIPPED, Pointer
from paceline.drafters.sssd.pool import PointerRange, Pool
from paceline.drafters.sssd.settings import (
    BAND_STARTS,
    LONGEST,
    MANY_TOKENS,
    MAX_DISTANCE,
    MAX_TOKENS,
)
from paceline.util.compiled import Records, kernel, record_dtype, subroutine

COUNTED_TEXTS = ("prompt", "output", "store")  # sources, as in calibration files
PROMPT, OUTPUT, STORE = range(3)  # indices of the sources
ORIGINS = np.array([Origin.PROMPT, Origin.OUTPUT, Origin.DATASTORE], dtype=np.int8)  # by source
_CACHED = np.int8(Origin.POOL)
BANDS = len(BAND_STARTS)
# Index of the band for each match length; length 0 belongs to the first band.
_BAND_OF = np.searchsorted(BAND_STARTS, np.arange(LONGEST + 1), side="right") - 1
_BAND_OF = np.maximum(_BAND_OF, 0).astype(np.int64)
_SLOTS = 512  # size of the hash table of tokens; a power of two above MAX_TOKENS

Int32 = Annotated[int, np.int32]
BySource = Annotated[NDArray[np.int32], np.int32, len(COUNTED_TEXTS)]
BySourceAndBand = Annotated[NDArray[np.int32], np.int32, (len(COUNTED_TEXTS), BANDS)]


class PointerCounts:
    """Counts of the match pointers that lead from a node to the same next token.

    A match pointer is the position after an earlier match of the newest tokens.

    Attributes:
        token: Token id.
        by_band: Number of matching pointers, by source (prompt, output or datastore) and by band of
            match lengths.
        longest: Length of the longest match, by source; 0 if the source does not propose the token.
        cached: Length of the longest match in recent answers (in-memory shards of the datastore).
        pointers: Number of pointers, including weak matches.
        skips: Number of pointers that skip the newest token (`weak_matches`).
        votes: Number of votes for the token as a related token (`weak_matches`).
        hinted: Source of the weak match that was counted last.
        nearest: Latest position in the request at which the token follows a match, or -1.
        off: Distance in tokens from the position that the request is copying (`follow_copy`) to the
            closest position at which the token follows a match; at most MAX_DISTANCE.
    """

    token: int
    by_band: BySourceAndBand
    longest: BySource
    cached: Int32
    pointers: Int32
    skips: Int32
    votes: Int32
    hinted: Int32
    nearest: int
    off: int


class NodeCounts:
    """Counts of all match pointers of a node.

    A match pointer is the position after an earlier match of the newest tokens.

    Attributes:
        by_band: Number of matching pointers, by source (prompt, output or datastore) and by band of
            match lengths.
        longest: Length of the longest match, by source.
        tokens: Number of different next tokens, by source.
        skips: Number of pointers that skip the newest token (`weak_matches`).
        matches: Number of matching pointers, excluding weak matches.
    """

    by_band: BySourceAndBand
    longest: BySource
    tokens: BySource
    skips: Int32
    matches: Int32


POINTER_COUNTS, NODE_COUNTS = record_dtype(PointerCounts), record_dtype(NodeCounts)


class SuccessorCounts(NamedTuple):
    """Match statistics of all tokens that may follow a node.

    Attributes:
        tokens: Counts per token, [MAX_TOKENS], in the order in which the tokens were first found.
        node: Counts of all tokens together, [1].
        slots: Hash table from token ids to indices into `tokens`, [_SLOTS]; -1 means empty.
    """

    tokens: Records[PointerCounts]
    node: Records[NodeCounts]
    slots: NDArray[np.int16]


@subroutine
def new_counts() -> SuccessorCounts:
    """Allocate the arrays for counting; the caller reuses them for every node."""
    tokens, node = np.empty(MAX_TOKENS, dtype=POINTER_COUNTS), np.empty(1, dtype=NODE_COUNTS)
    return SuccessorCounts(tokens, node, np.empty(_SLOTS, dtype=np.int16))


@kernel
def count_tokens(
    table: Records[ShardRow],
    pool: Pool,
    pointers: PointerRange,
    prompt_length: int,
    copy_position: int,
    counts: SuccessorCounts,
) -> int:
    """Count a node's match pointers (positions after earlier matches) by next token.

    Args:
        table: Shards of the datastore.
        pool: Match pointers of all nodes in the tree.
        pointers: Range of the node's match pointers in `pool`.
        prompt_length: Length of the prompt, in tokens.
        copy_position: Position in the request of the text that is being copied (`follow_copy`).
        counts: Counts to overwrite.
    Returns:
        The number of different next tokens.
    """
    node = counts.node[0]
    counts.slots[:], node.by_band[:], node.longest[:], node.tokens[:] = -1, 0, 0, 0
    node.skips, node.matches = 0, 0
    num_tokens = 0
    for index in range(pointers.begin, pointers.end):
        pointer = pool.pointers[index]
        if pointer.token < 0:
            continue
        which, num_tokens = _find(counts, pointer.token, num_tokens)
        if which < 0:
            continue
        source = (
            STORE
            if pointer.shard != REQUEST
            else OUTPUT
            if pointer.position >= prompt_length
            else PROMPT
        )
        _count(table, pointer, source, copy_position, counts, which)
    return num_tokens


@kernel
def _count(
    table: Records[ShardRow],
    pointer: Pointer,
    source: int,
    copy_position: int,
    counts: SuccessorCounts,
    which: int,
) -> None:
    """Add one match pointer to the counts of its token and of its node."""
    token, node, match = counts.tokens[which], counts.node[0], pointer.match
    token.pointers += 1
    if match < 0:
        token.hinted = source
    if match == SKIPPED:
        token.skips += 1
        node.skips += 1
    elif match < 0:
        token.votes -= match
    else:
        band = _BAND_OF[match]
        node.matches += 1
        token.by_band[source, band] += 1
        node.by_band[source, band] += 1
        node.tokens[source] += token.longest[source] == 0
        token.longest[source] = max(token.longest[source], match)
        node.longest[source] = max(node.longest[source], match)
        if source != STORE:
            token.nearest = max(token.nearest, pointer.position)
            token.off = min(token.off, abs(pointer.position - copy_position))
        elif table[pointer.shard].pages == 0:
            token.cached = max(token.cached, match)


@kernel
def _find(counts: SuccessorCounts, token: int, num_tokens: int) -> tuple[int, int]:
    """Return a token's index in `counts.tokens`, and the new number of tokens.

    A new token is added to `counts.tokens`. If the array is full, the index is -1.
    """
    slot = (token * 0x9E3779B1 >> 7) & (_SLOTS - 1)
    while counts.slots[slot] >= 0 and counts.tokens[counts.slots[slot]].token != token:
        slot = (slot + 1) & (_SLOTS - 1)
    which = int(counts.slots[slot])
    if which >= 0 or num_tokens == MAX_TOKENS:
        return which, num_tokens
    counts.slots[slot] = num_tokens
    new = counts.tokens[num_tokens]
    new.token, new.nearest, new.off = token, -1, MAX_DISTANCE
    new.pointers, new.skips, new.votes = 0, 0, 0
    new.by_band[:], new.longest[:], new.cached = 0, 0, 0
    return num_tokens, num_tokens + 1


@kernel
def is_hopeless(counts: SuccessorCounts, which: int, num_tokens: int) -> bool:
    """Return whether a token is so unlikely that scoring it can be skipped.

    A token is skipped if the node has many next tokens, and if the token's only match is at least
    two tokens shorter than the node's longest match.
    """
    token, node = counts.tokens[which], counts.node[0]
    if num_tokens <= MANY_TOKENS or token.pointers > 1 or token.votes > 0:
        return False
    longest = max(node.longest[PROMPT], node.longest[OUTPUT], node.longest[STORE])
    return bool(
        max(token.longest[PROMPT], token.longest[OUTPUT], token.longest[STORE]) + 1 < longest
    )


@kernel
def origin_of(counts: SuccessorCounts, which: int) -> Any:
    """Return a token's origin: the source with the longest match before the token.

    Among sources with matches of that length, the source with the most matches wins.
    """
    token = counts.tokens[which]
    best, longest, max_matches = token.hinted, 0, 0
    for source in range(len(COUNTED_TEXTS)):
        match = token.longest[source]
        if match > 0 and match >= longest:
            matches = token.by_band[source, _BAND_OF[match]]
            if match > longest or matches > max_matches:
                best, longest, max_matches = source, match, matches
    if best == STORE and token.cached == longest > 0:
        return _CACHED
    return ORIGINS[best]


@kernel
def guess_of_request(counts: SuccessorCounts, num_tokens: int) -> int:
    """Return the index of the token after the longest match in the request, or -1.

    The index refers to `counts.tokens`. Among several such tokens, the latest one wins.
    """
    best, longest = -1, 0
    for which in range(num_tokens):
        token = counts.tokens[which]
        match = max(token.longest[PROMPT], token.longest[OUTPUT])
        if match > longest or (
            match == longest > 0 and token.nearest > counts.tokens[best].nearest
        ):
            best, longest = which, match
    return best


@kernel
def guess_of_store(counts: SuccessorCounts, num_tokens: int) -> int:
    """Return the index of the token after the longest match in the datastore, or -1.

    The index refers to `counts.tokens`. Among several such tokens, the most frequent one wins.
    """
    best, longest, max_matches = -1, 0, 0
    for which in range(num_tokens):
        token = counts.tokens[which]
        match, matches = token.longest[STORE], 0
        for band in range(BANDS):
            matches += token.by_band[STORE, band]
        if match > longest or (match == longest > 0 and matches > max_matches):
            best, longest, max_matches = which, match, matches
    return best
