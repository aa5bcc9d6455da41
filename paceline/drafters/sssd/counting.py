"""Count the pointers of a node by the token that follows and by source.

Matches are counted by source and by band of length (1, 2, 3, 4-5, 6-8, 9-15, 16 and more tokens);
weak matches (`hints`) are counted apart. A node with the pointers

    place   shard     match   token                        source
        3   REQUEST       2       7    place < prompt      prompt
        9   REQUEST       2       8                        output
       40   0             5       8                        store

has two tokens:

    tokens[0]   token 7   by_band[prompt, band of 2] = 1    longest (2, 0, 0)   nearest 3
    tokens[1]   token 8   by_band[output, band of 2] = 1    longest (0, 2, 5)   nearest 9
                          by_band[store, band of 5] = 1
    node                  the sums of both                  longest (2, 2, 5)   tokens (1, 1, 1)
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.origin import Origin
from paceline.datastore.rows import ShardRow
from paceline.drafters.sssd.evidence import Pool
from paceline.drafters.sssd.pointers import REQUEST, SKIPPED
from paceline.drafters.sssd.request_index import LONGEST
from paceline.util.compiled import Records, compiled, kernel, record_dtype

SOURCES = ("prompt", "output", "store")
PROMPT, OUTPUT, STORE = range(3)  # indices of the sources
ORIGINS = np.array([Origin.PROMPT, Origin.OUTPUT, Origin.DATASTORE], dtype=np.int8)  # by source
_REMEMBERED = np.int8(Origin.POOL)
BANDS = 7
MOST_TOKENS = 192  # different tokens that follow one node
FAR = 1023  # the most that a place is off the copied text
# by length of match
_BAND_OF = np.array([0, 0, 1, 2, 3, 3, 4, 4, 4] + [5] * 7 + [6] * (LONGEST - 15), dtype=np.int64)
_SLOTS = 512  # of the hash table over tokens
_MANY = 12  # different tokens behind one node

Int32 = Annotated[int, np.int32]
BySource = Annotated[NDArray[np.int32], np.int32, len(SOURCES)]
BySourceAndBand = Annotated[NDArray[np.int32], np.int32, (len(SOURCES), BANDS)]


class TokenCounts:
    """Count the pointers of a node to one token."""

    token: int
    by_band: BySourceAndBand  # pointers that match
    longest: BySource  # length of the longest match; 0 = the source does not offer the token
    # length of the longest match in a shard that is in no file, of what was answered before
    remembered: Int32
    pointers: Int32  # of all kinds
    skips: Int32  # pointers that skip the newest token
    votes: Int32  # of places in the same relation
    hinted: Int32  # source of the latest pointer that is no match
    nearest: int  # the latest place in the request behind a match, -1 = none
    # tokens between the copied text and the place in the request that is closest to it; at most FAR
    off: int


class NodeCounts:
    """Count all pointers of a node."""

    by_band: BySourceAndBand  # pointers that match
    longest: BySource  # length of the longest match
    tokens: BySource  # different tokens
    skips: Int32  # pointers that skip the newest token
    matches: Int32  # pointers that match


TOKEN_COUNTS, NODE_COUNTS = record_dtype(TokenCounts), record_dtype(NodeCounts)


class SuccessorCounts(NamedTuple):
    """Hold the counts of the tokens that may follow a node.

    Attributes:
        tokens: [MAX_TOKENS] in the order of their first pointers.
        node: [1] all of them together.
        slots: [_SLOTS] hash table of indices of `tokens`; -1 is empty.
    """

    tokens: Records[TokenCounts]
    node: Records[NodeCounts]
    slots: NDArray[np.int16]


@compiled
def new_counts() -> SuccessorCounts:
    """Return scratch arrays for one node at a time."""
    tokens, node = np.empty(MOST_TOKENS, dtype=TOKEN_COUNTS), np.empty(1, dtype=NODE_COUNTS)
    return SuccessorCounts(tokens, node, np.empty(_SLOTS, dtype=np.int16))


@kernel
def count_tokens(
    table: Records[ShardRow],
    pool: Pool,
    begin: int,
    end: int,
    prompt_length: int,
    copy_place: int,
    counts: SuccessorCounts,
) -> int:
    """Count the pointers [begin, end) by the token that follows.

    Args:
        table: Shards of the datastore.
        pool: Pointers of the tree.
        begin: First pointer.
        end: End of the pointers.
        prompt_length: Length of the prompt.
        copy_place: Request position where the text that is being copied continues.
        counts: Counts to fill.
    Returns:
        The number of different tokens.
    """
    node = counts.node[0]
    counts.slots[:], node.by_band[:], node.longest[:], node.tokens[:] = -1, 0, 0, 0
    node.skips, node.matches = 0, 0
    different = 0
    for index in range(begin, end):
        pointer = pool.pointers[index]
        if pointer.token < 0:
            continue
        which, different = _find(counts, pointer.token, different)
        if which < 0:
            continue
        one, match = counts.tokens[which], pointer.match
        source = (
            STORE
            if pointer.shard != REQUEST
            else OUTPUT
            if pointer.place >= prompt_length
            else PROMPT
        )
        one.pointers += 1
        if match < 0:
            one.hinted = source
        if match == SKIPPED:
            one.skips += 1
            node.skips += 1
        elif match < 0:
            one.votes -= match
        else:
            band = _BAND_OF[match]
            node.matches += 1
            one.by_band[source, band] += 1
            node.by_band[source, band] += 1
            node.tokens[source] += one.longest[source] == 0
            one.longest[source] = max(one.longest[source], match)
            node.longest[source] = max(node.longest[source], match)
            if source != STORE:
                one.nearest = max(one.nearest, pointer.place)
                one.off = min(one.off, abs(pointer.place - copy_place))
            elif table[pointer.shard].pages == 0:
                one.remembered = max(one.remembered, match)
    return different


@kernel
def _find(counts: SuccessorCounts, token: int, different: int) -> tuple[int, int]:
    """Return the index of a token and the number of tokens; -1 if the table is full."""
    slot = (token * 0x9E3779B1 >> 7) & (_SLOTS - 1)
    while counts.slots[slot] >= 0 and counts.tokens[counts.slots[slot]].token != token:
        slot = (slot + 1) & (_SLOTS - 1)
    which = int(counts.slots[slot])
    if which >= 0 or different == MOST_TOKENS:
        return which, different
    counts.slots[slot] = different
    one = counts.tokens[different]
    one.token, one.nearest, one.off, one.pointers, one.skips, one.votes = token, -1, FAR, 0, 0, 0
    one.by_band[:], one.longest[:], one.remembered = 0, 0, 0
    return different, different + 1


@kernel
def hopeless(counts: SuccessorCounts, which: int, different: int) -> bool:
    """Return whether a token can be skipped without scoring.

    It is one of many tokens, was seen once, and its match is shorter than the longest by two tokens
    or more.
    """
    one, node = counts.tokens[which], counts.node[0]
    if different <= _MANY or one.pointers > 1 or one.votes > 0:
        return False
    longest = max(node.longest[PROMPT], node.longest[OUTPUT], node.longest[STORE])
    return bool(max(one.longest[PROMPT], one.longest[OUTPUT], one.longest[STORE]) + 1 < longest)


@kernel
def origin_of(counts: SuccessorCounts, which: int) -> Any:
    """Return the origin of a token: the source with the longest match.

    Among several sources with this length, the one with the most matches wins.
    """
    one = counts.tokens[which]
    best, longest, most = one.hinted, 0, 0
    for source in range(len(SOURCES)):
        match = one.longest[source]
        if match > 0 and match >= longest:
            times = one.by_band[source, _BAND_OF[match]]
            if match > longest or times > most:
                best, longest, most = source, match, times
    if best == STORE and one.remembered == longest > 0:
        return _REMEMBERED
    return ORIGINS[best]


@kernel
def guess_of_request(counts: SuccessorCounts, different: int) -> int:
    """Return the token with the longest, latest match in the request, or -1."""
    best, longest = -1, 0
    for which in range(different):
        one = counts.tokens[which]
        match = max(one.longest[PROMPT], one.longest[OUTPUT])
        if match > longest or (match == longest > 0 and one.nearest > counts.tokens[best].nearest):
            best, longest = which, match
    return best


@kernel
def guess_of_store(counts: SuccessorCounts, different: int) -> int:
    """Return the token with the longest match in the datastore, or -1.

    Ties go to the most frequent token.
    """
    best, longest, most = -1, 0, 0
    for which in range(different):
        one = counts.tokens[which]
        match, times = one.longest[STORE], 0
        for band in range(BANDS):
            times += one.by_band[STORE, band]
        if match > longest or (match == longest > 0 and times > most):
            best, longest, most = which, match, times
    return best
