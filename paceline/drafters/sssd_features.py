"""From match pointers to chances: what both sources say about each token that may follow a node, as numbers for a small network.

Everything is counted by source (prompt, own output, datastore) and by length of match, in `BANDS` of lengths.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.compiled import compiled, kernel
from paceline.drafters.request_index import LONGEST
from paceline.drafters.sssd_evidence import MATCH, NEXT, PLACE, REQUEST, SHARD, SKIPPED, Pool

SOURCES = ("prompt", "output", "store")
_OF_TOKEN = ("blend", "top share", "longest of token", "count")
_OF_NODE = ("top pointers", "pointers", "longest", "tokens")
FEATURES = (
    *(f"{source} {what}" for what in _OF_TOKEN for source in SOURCES), "latest of longest", "age",
    "seen", "off line", "vote share", "skip share", "skips",
    *(f"{source} {what}" for what in _OF_NODE for source in SOURCES),
    "depth", "recently accepted", "request hits", "store hits", "chance of parent",
)  # fmt: skip
_BLEND, _SHARE, _TOKEN_LONGEST, _COUNT, _LATEST = range(0, 13, 3)
_AGE, _SEEN, _OFF, _VOTED, _SKIP_SHARE, _SKIPS = range(_LATEST + 1, _LATEST + 7)
SHARED = _SKIPS + 1  # inputs from SHARED on belong to the node
_TOP, _POINTERS, _LONGEST, _TOKENS, _DEPTH = range(SHARED, SHARED + 13, 3)
_ACCEPTED, _REQUEST_HITS, _STORE_HITS, _PARENT = range(_DEPTH + 1, _DEPTH + 5)
HIDDEN = 16  # units of the network
WEIGHTS = (len(FEATURES) + 2) * HIDDEN + 1  # first layer with its bias, second layer with its bias
ACCEPTED, REQUEST_HITS, STORE_HITS, REQUEST_GUESS, STORE_GUESS, STARTED, LINE = range(7)  # numbers kept with a request
NO_LINE = -float(1 << 30)  # as LINE: nothing is being copied
_MANY = 12  # different tokens behind one node
MOST_TOKENS = 192  # different tokens that follow one node
BANDS = 7
_BAND_OF = np.array([0, 0, 1, 2, 3, 3, 4, 4, 4] + [5] * 7 + [6] * (LONGEST - 15), dtype=np.int64)  # by length of match
_LOGS = np.log1p(np.arange(1024)).astype(np.float32)
_STORE = 2  # index of the source
_SLOTS = 512  # of the hash table over tokens
_ESCAPE = np.float32(0.7)  # weight of the shorter matches beside the counts of longer ones
_FLOOR = np.float32(0.01)  # of a share, before its log odds
_NOTHING = math.log(0.01 / 1.01)
_FAR = 1023  # tokens from the line
_NEVER = 8.0  # the age of a token that the request does not offer


class Counts(NamedTuple):
    """What follows one node, token by token.

    Attributes:
        tokens: [MOST_TOKENS]. slots: [_SLOTS] hash table of their indices, -1 = empty.
        by_band: [MOST_TOKENS, SOURCES, BANDS] pointers of each token by source and band of match length; node: of all.
        longest: [MOST_TOKENS, SOURCES] match lengths; nearest: [MOST_TOKENS] latest place in the request; times: pointers.
        offs: [MOST_TOKENS] how far from the line the nearest place in the request is. hints: [MOST_TOKENS + 1, 2] pointers that
            skip a token, and votes; of all: the former, and pointers that match.
        of_source: [SOURCES, 2] the longest match of all, and how many different tokens.
        alike: [LONGEST + 1] chances of tokens that the datastore has once, by match length (0: behind a skipped one), or -1.
        inputs: [len(FEATURES)]. shared, hidden: [HIDDEN] the units, with the inputs of the node only, and with all.
    """

    tokens: NDArray[np.int64]
    slots: NDArray[np.int16]
    by_band: NDArray[np.int32]
    node: NDArray[np.int32]
    longest: NDArray[np.int32]
    nearest: NDArray[np.int64]
    times: NDArray[np.int32]
    offs: NDArray[np.int64]
    hints: NDArray[np.int32]
    of_source: NDArray[np.int32]
    alike: NDArray[np.float64]
    inputs: NDArray[np.float32]
    shared: NDArray[np.float32]
    hidden: NDArray[np.float32]


@compiled
def new_counts() -> Counts:
    """Scratch for one node at a time."""
    return Counts(
        np.empty(MOST_TOKENS, dtype=np.int64),
        np.empty(_SLOTS, dtype=np.int16),
        np.empty((MOST_TOKENS, len(SOURCES), BANDS), dtype=np.int32),
        np.empty((len(SOURCES), BANDS), dtype=np.int32),
        np.empty((MOST_TOKENS, len(SOURCES)), dtype=np.int32),
        np.empty(MOST_TOKENS, dtype=np.int64),
        np.empty(MOST_TOKENS, dtype=np.int32),
        np.empty(MOST_TOKENS, dtype=np.int64),
        np.empty((MOST_TOKENS + 1, 2), dtype=np.int32),
        np.empty((len(SOURCES), 2), dtype=np.int32),
        np.empty(LONGEST + 1, dtype=np.float64),
        np.empty(len(FEATURES), dtype=np.float32),
        np.empty(HIDDEN, dtype=np.float32),
        np.empty(HIDDEN, dtype=np.float32),
    )


@kernel
def count_tokens(pool: Pool, begin: int, end: int, prompt: int, line: int, counts: Counts) -> int:
    """Sort the pointers [begin, end) by the token that follows; how many different ones there are."""
    counts.slots[:], counts.node[:], counts.of_source[:], counts.hints[MOST_TOKENS], counts.alike[:] = -1, 0, 0, 0, -1.0
    different = 0
    for index in range(begin, end):
        token = pool.pointers[index, NEXT]
        if token < 0:
            continue
        slot = (token * 0x9E3779B1 >> 7) & (_SLOTS - 1)
        while counts.slots[slot] >= 0 and counts.tokens[counts.slots[slot]] != token:
            slot = (slot + 1) & (_SLOTS - 1)
        which = int(counts.slots[slot])
        if which < 0:
            if different == MOST_TOKENS:
                continue
            which = different
            different += 1
            counts.slots[slot], counts.tokens[which] = which, token
            counts.by_band[which], counts.longest[which], counts.hints[which], counts.nearest[which] = 0, 0, 0, -1
            counts.times[which], counts.offs[which] = 0, _FAR
        source = _STORE if pool.pointers[index, SHARD] != REQUEST else int(pool.pointers[index, PLACE] >= prompt)
        match = pool.pointers[index, MATCH]
        counts.times[which] += 1
        if match < 0:
            skipped = match == SKIPPED
            counts.hints[which, int(not skipped)] += 1 if skipped else -match
            counts.hints[MOST_TOKENS, 0] += skipped
            continue
        counts.hints[MOST_TOKENS, 1] += 1
        counts.by_band[which, source, _BAND_OF[match]] += 1
        counts.node[source, _BAND_OF[match]] += 1
        counts.of_source[source, 1] += counts.longest[which, source] == 0
        counts.longest[which, source] = max(counts.longest[which, source], match)
        counts.of_source[source, 0] = max(counts.of_source[source, 0], match)
        if source != _STORE:
            counts.nearest[which] = max(counts.nearest[which], pool.pointers[index, PLACE])
            counts.offs[which] = min(counts.offs[which], abs(pool.pointers[index, PLACE] - line))
    return different


@kernel
def describe_node(counts: Counts, depth: int, parent: float, state: NDArray[np.float64]) -> None:
    """Fill the inputs that all tokens of a node share."""
    inputs = counts.inputs
    for source in range(len(SOURCES)):
        total, top = 0, 0
        for band in range(BANDS):
            total += counts.node[source, band]
            top = counts.node[source, band] if counts.node[source, band] > 0 else top
        inputs[_POINTERS + source], inputs[_TOP + source] = _LOGS[min(total, 1023)], _LOGS[min(top, 1023)]
        longest, tokens = counts.of_source[source, 0], counts.of_source[source, 1]
        inputs[_LONGEST + source], inputs[_TOKENS + source] = _LOGS[longest], _LOGS[tokens]
    inputs[_DEPTH] = _LOGS[min(depth, 1023)]
    inputs[_ACCEPTED] = math.log1p(state[ACCEPTED])
    inputs[_REQUEST_HITS], inputs[_STORE_HITS] = state[REQUEST_HITS], state[STORE_HITS]
    inputs[_PARENT] = math.log(parent)


@kernel
def hopeless(counts: Counts, which: int, different: int) -> bool:
    """Whether a token need not be looked at: one of many, seen once, behind a match shorter than others by two or more."""
    if different <= _MANY or counts.times[which] > 1 or counts.hints[which, 1] > 0:
        return False
    longest = max(counts.of_source[0, 0], counts.of_source[1, 0], counts.of_source[2, 0])
    return bool(max(counts.longest[which, 0], counts.longest[which, 1], counts.longest[which, 2]) + 1 < longest)


@kernel
def describe_token(counts: Counts, which: int, best: int, end: int, seen: int) -> None:
    """Fill the inputs of a token. best: the request's guess; end: the place behind the node; seen: its latest place, or -1."""
    inputs = counts.inputs
    for source in range(len(SOURCES)):
        longest = counts.longest[which, source]
        inputs[_TOKEN_LONGEST + source] = _LOGS[longest]
        if longest == 0:
            inputs[_BLEND + source], inputs[_SHARE + source], inputs[_COUNT + source] = 0.0, 0.0, 0.0
            continue
        blend, share, count = _blend(counts.node[source], counts.by_band[which, source])
        inputs[_BLEND + source] = math.log((blend + _FLOOR) / (1 - blend + _FLOOR))
        inputs[_SHARE + source] = math.log((share + _FLOOR) / (1 - share + _FLOOR)) if share > 0 else _NOTHING
        inputs[_COUNT + source] = _LOGS[min(count, 1023)]
    inputs[_LATEST] = 1.0 if which == best else 0.0
    inputs[_SEEN] = _NEVER if seen < 0 else math.log1p(float(max(0, end - seen)))
    inputs[_OFF] = _LOGS[counts.offs[which]]
    skips, votes = counts.hints[which, 0], counts.hints[which, 1]
    inputs[_VOTED] = votes / np.float32(max(1, counts.hints[MOST_TOKENS, 1]))
    share = skips / np.float32(max(1, counts.hints[MOST_TOKENS, 0]))
    inputs[_SKIP_SHARE] = math.log((share + _FLOOR) / (1 - share + _FLOOR)) if share > 0 else _NOTHING
    inputs[_SKIPS] = _LOGS[min(skips, 1023)]
    near = counts.nearest[which]
    inputs[_AGE] = _NEVER if near < 0 else math.log1p(float(max(0, end - near)))


@kernel
def _blend(node: NDArray[np.int32], token: NDArray[np.int32]) -> tuple[float, float, int]:
    """How likely one source holds a token: shares of nested match lengths, each blended with the one below (as PPM does).

    Returns:
        the blend; the share among the longest matches; and how many pointers have the token.
    """
    all_above, token_above = 0, 0
    for band in range(BANDS):
        all_above += node[band]
        token_above += token[band]
    seen, blend, all_top, token_top = token_above, np.float32(0.0), 1, 0
    for band in range(BANDS):
        if node[band] > 0:
            blend = (token_above + _ESCAPE * blend) / (np.float32(all_above) + _ESCAPE)
            all_top, token_top = all_above, token_above
            all_above -= node[band]
            token_above -= token[band]
    return float(blend), float(np.float32(token_top) / np.float32(all_top)), int(seen)


@kernel
def guess_of_request(counts: Counts, different: int) -> int:
    """The token with the longest match in prompt or output, the latest one on ties; -1 if there is none."""
    best, longest = -1, 0
    for which in range(different):
        match = max(counts.longest[which, 0], counts.longest[which, 1])
        if match > longest or (match == longest > 0 and counts.nearest[which] > counts.nearest[best]):
            best, longest = which, match
    return best


@kernel
def guess_of_store(counts: Counts, different: int) -> int:
    """The token with the longest match in the datastore, the most frequent one on ties; -1 if there is none."""
    best, longest, most = -1, 0, 0
    for which in range(different):
        match, times = counts.longest[which, _STORE], 0
        for band in range(BANDS):
            times += counts.by_band[which, _STORE, band]
        if match > longest or (match == longest > 0 and times > most):
            best, longest, most = which, match, times
    return best


@kernel
def share_inputs(inputs: NDArray[np.float32], shared: NDArray[np.float32], weights: NDArray[np.float32]) -> None:
    """The units of the network with the inputs of the node alone. weights: [WEIGHTS], the first layer input by input."""
    for unit in range(HIDDEN):
        shared[unit] = weights[inputs.size * HIDDEN + unit]
    for index in range(SHARED, inputs.size):
        value = inputs[index]
        for unit in range(HIDDEN):
            shared[unit] += value * weights[index * HIDDEN + unit]


@kernel
def chance_of(counts: Counts, which: int, best: int, end: int, seen: int, weights: NDArray[np.float32], anew: bool) -> float:
    """The chance of one token, `describe_node` and `share_inputs` called before; other arguments as of `describe_token`.

    Tokens that are not in the request and that the datastore has once, behind matches of the same length or behind a skipped
    token, have the same inputs: unless `anew`, one look will do for all of these.
    """
    match = counts.longest[which, _STORE]
    single = counts.times[which] == 1 and seen < 0 and counts.nearest[which] < 0 and counts.hints[which, 1] == 0 and not anew
    if single and counts.alike[match] >= 0:
        return float(counts.alike[match])
    describe_token(counts, which, best, end, seen)
    likely = chance(counts, weights)
    if single:
        counts.alike[match] = likely
    return likely


@kernel
def chance(counts: Counts, weights: NDArray[np.float32]) -> float:
    """The network: a layer of rectified units, then a logistic one; `share_inputs` was called for the node."""
    inputs, hidden = counts.inputs, counts.hidden
    for unit in range(HIDDEN):
        hidden[unit] = counts.shared[unit]
    for index in range(SHARED):
        value = inputs[index]
        for unit in range(HIDDEN):
            hidden[unit] += value * weights[index * HIDDEN + unit]
    second = (inputs.size + 1) * HIDDEN
    total = weights[second + HIDDEN]
    for unit in range(HIDDEN):
        total += max(hidden[unit], np.float32(0.0)) * weights[second + unit]
    return 1.0 / (1.0 + math.exp(-total))


@kernel
def update_state(state: NDArray[np.float64], fresh: NDArray[np.int64], rate: float) -> None:
    """Note how the last step went: tokens accepted, and whether each source alone would have guessed the first one."""
    if state[STARTED] > 0 and fresh.size > 0:
        state[ACCEPTED] += rate * (fresh.size - 1 - state[ACCEPTED])
        if state[REQUEST_GUESS] >= 0:
            state[REQUEST_HITS] += rate * ((1.0 if state[REQUEST_GUESS] == fresh[0] else 0.0) - state[REQUEST_HITS])
        if state[STORE_GUESS] >= 0:
            state[STORE_HITS] += rate * ((1.0 if state[STORE_GUESS] == fresh[0] else 0.0) - state[STORE_HITS])
    elif state[STARTED] == 0:
        state[ACCEPTED], state[REQUEST_HITS], state[STORE_HITS], state[STARTED] = 1.0, 0.4, 0.4, 1.0
        state[LINE] = NO_LINE
    state[LINE] += fresh.size
    state[REQUEST_GUESS], state[STORE_GUESS] = -1.0, -1.0
