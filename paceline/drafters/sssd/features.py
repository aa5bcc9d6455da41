"""Describe each candidate token by the 36 inputs of a small network.

The fields up to `skips` belong to the token; the others belong to its node and are shared by all
its tokens. Counts and lengths enter as log(1 + n), shares as log odds. In the example of
`counting`, 7 was found once in the prompt, and 8 once in the output and once, after 5 tokens, in
the datastore:

                            prompt    output    store                  prompt    output    store
    8: longest_of_token     0         log 3     log 6      node: longest  log 3     log 3     log 6
       top_share            0         4.6       4.6              tokens   log 2     log 2     log 2
       count                0         log 2     log 2            pointers log 2     log 2     log 2

4.6 is the log odds of a share of 1, computed from 1.01 and 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.sssd.counting import BANDS, SOURCES, SuccessorCounts
from paceline.drafters.sssd.request_index import RequestState
from paceline.util.compiled import kernel, record_dtype

Number = Annotated[Any, np.float32]
# of the prompt, the own output, the datastore
OfSources = Annotated[NDArray[np.float32], np.float32, len(SOURCES)]


class Inputs:
    """List the inputs of the network in the order of its weights."""

    # the share of the token, blended over lengths of match as PPM does: log odds; 0 = not offered
    blend: OfSources
    top_share: (
        OfSources  # its share among the longest matches of the node: log odds; 0 = not offered
    )
    longest_of_token: OfSources  # the longest match it follows: log(1 + tokens)
    count: OfSources  # its matching pointers: log(1 + n)
    latest_of_longest: (
        Number  # 1 = the guess of the request: the longest match in it, the latest on ties
    )
    age: Number  # tokens since its latest place behind a match in the request: log(1 + n); 8 = none
    seen: Number  # tokens since it last stood anywhere in the request: log(1 + n); 8 = never
    off_line: Number  # tokens between the copied text and its place in the request: log(1 + n)
    # votes for it by places in the same relation, over the matching pointers of the node
    vote_share: Number
    skip_share: Number  # its share of the pointers that skip the newest token: log odds
    skips: Number  # these pointers: log(1 + n)
    top_pointers: OfSources  # pointers in the band of the longest matches of the node: log(1 + n)
    pointers: OfSources  # matching pointers of the node: log(1 + n)
    longest: OfSources  # the longest match of the node: log(1 + tokens)
    tokens: OfSources  # different tokens that follow it: log(1 + n)
    depth: Number  # of the node: log(1 + n)
    recently_accepted: Number  # draft tokens accepted in a step, a running mean: log(1 + n)
    request_hits: Number  # acceptance rate of the request's best token, a running mean
    store_hits: Number  # acceptance rate of the datastore's best token
    chance_of_parent: Number  # the confidence of the node: log


INPUTS = record_dtype(Inputs)
TOKEN_INPUTS: int = INPUTS.fields["top_pointers"][1] // 4  # inputs from here on belong to the node


def _names() -> Iterator[str]:
    """Yield the names of the inputs as in calibration files."""
    for name, (kind, _) in INPUTS.fields.items():
        words = name.replace("_", " ")
        yield from (f"{source} {words}" for source in SOURCES) if kind.shape else (words,)


FEATURES = tuple(_names())
HIDDEN = 16  # units of the network
WEIGHTS = (len(FEATURES) + 2) * HIDDEN + 1  # first layer with its bias, second layer with its bias
_LOGS = np.log1p(np.arange(1024)).astype(np.float32)
_ESCAPE = np.float32(0.7)  # weight of shorter matches relative to counts of longer ones
_FLOOR = np.float32(0.01)  # of a share, before its log odds
_NOTHING = math.log(0.01 / 1.01)  # log odds of no share
_NEVER = 8.0  # the age of a token that the request does not offer


@kernel
def describe_node(
    inputs: Inputs,
    counts: SuccessorCounts,
    depth: int,
    parent_confidence: float,
    request: RequestState,
) -> None:
    """Fill the inputs that all tokens of a node share."""
    node = counts.node[0]
    for source in range(len(SOURCES)):
        total, top = 0, 0
        for band in range(BANDS):
            total += node.by_band[source, band]
            top = node.by_band[source, band] if node.by_band[source, band] > 0 else top
        inputs.pointers[source], inputs.top_pointers[source] = (
            _LOGS[min(total, 1023)],
            _LOGS[min(top, 1023)],
        )
        inputs.longest[source], inputs.tokens[source] = (
            _LOGS[node.longest[source]],
            _LOGS[node.tokens[source]],
        )
    inputs.depth = _LOGS[min(depth, 1023)]
    inputs.recently_accepted = math.log1p(request.accepted)
    inputs.request_hits, inputs.store_hits = request.request_hits, request.store_hits
    inputs.chance_of_parent = math.log(parent_confidence)


@kernel
def describe_token(
    inputs: Inputs, counts: SuccessorCounts, which: int, best: int, end: int, seen: int
) -> None:
    """Fill the inputs of a token.

    Args:
        inputs: Inputs to fill.
        counts: Counts of the node.
        which: Index of the token.
        best: Index of the request's best candidate.
        end: Text position after the node.
        seen: Latest position of the token in the request, or -1.
    """
    one, node = counts.tokens[which], counts.node[0]
    for source in range(len(SOURCES)):
        longest = one.longest[source]
        inputs.longest_of_token[source] = _LOGS[longest]
        if longest == 0:
            inputs.blend[source], inputs.top_share[source], inputs.count[source] = 0.0, 0.0, 0.0
            continue
        blend, share, count = _blend(node.by_band[source], one.by_band[source])
        inputs.blend[source] = math.log((blend + _FLOOR) / (1 - blend + _FLOOR))
        inputs.top_share[source] = (
            math.log((share + _FLOOR) / (1 - share + _FLOOR)) if share > 0 else _NOTHING
        )
        inputs.count[source] = _LOGS[min(count, 1023)]
    inputs.latest_of_longest = 1.0 if which == best else 0.0
    inputs.age = _NEVER if one.nearest < 0 else math.log1p(float(max(0, end - one.nearest)))
    inputs.seen = _NEVER if seen < 0 else math.log1p(float(max(0, end - seen)))
    inputs.off_line = _LOGS[one.off]
    inputs.vote_share = one.votes / np.float32(max(1, node.matches))
    skipped = one.skips / np.float32(max(1, node.skips))
    inputs.skip_share = (
        math.log((skipped + _FLOOR) / (1 - skipped + _FLOOR)) if skipped > 0 else _NOTHING
    )
    inputs.skips = _LOGS[min(one.skips, 1023)]


@kernel
def _blend(node: NDArray[np.int32], token: NDArray[np.int32]) -> tuple[float, float, int]:
    """Estimate the probability of a token from one source by blending (as in PPM).

    Shares of nested match lengths are each blended with the share below.

    Returns:
        The blend, the share among the longest matches, and the number of pointers to the token.
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
