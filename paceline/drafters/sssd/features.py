"""Describe each candidate token by the 36 inputs of a small network.

The fields of `Inputs` up to `skips` describe the token. The other fields describe the node before
the token, and are equal for all tokens that follow this node. Counts and lengths are encoded as
log(1 + n), and fractions as log odds. In the example in `counting.py`, token 7 follows a match in
the prompt. Token 8 follows a match of 2 tokens in the output and a match of 5 tokens in the
datastore. These are some of the inputs for token 8:

    of the token       prompt   output   store     of the node   prompt   output   store
    ================   ======   ======   =====     ===========   ======   ======   =====
    longest_of_token   0        log 3    log 6     longest       log 3    log 3    log 6
    top_share          0        4.6      4.6       tokens        log 2    log 2    log 2
    count              0        log 2    log 2     pointers      log 2    log 2    log 2

The value 4.6 encodes a fraction of 1: log(1.01 / 0.01).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.sssd.counting import BANDS, COUNTED_TEXTS, SuccessorCounts
from paceline.drafters.sssd.request_index import RequestState
from paceline.drafters.sssd.settings import ESCAPE, HIDDEN, NEVER, SHARE_FLOOR
from paceline.util.compiled import kernel, record_dtype

Number = Annotated[Any, np.float32]
# One value each for the prompt, the output and the datastore.
OfSources = Annotated[NDArray[np.float32], np.float32, len(COUNTED_TEXTS)]


class Inputs:
    """The inputs of the network, in the same order as its weights.

    Their names are part of calibration.json. Vectors have one value per source: prompt, output and
    datastore. Each pointer of a node leads to a token in earlier text. The tokens before that token
    match the tokens up to the node (`pointers`).

    Attributes:
        blend: Fraction of the node's matches that are followed by the token, blended over all match
            lengths (`_blend`); log odds, or 0 if the source does not propose the token.
        top_share: Fraction of the node's longest matches that are followed by the token; log odds,
            or 0 if the source does not propose the token.
        longest_of_token: Length of the longest match before the token; log(1 + tokens).
        count: Number of matching pointers to the token; log(1 + n).
        latest_of_longest: 1 for the token after the longest match in the request, and 0 for all
            other tokens. If several tokens follow equally long matches, only the most recent one
            has the value 1.
        age: Number of tokens since the token last followed a match in the request; log(1 + n), or
            NEVER.
        seen: Number of tokens since the token's latest occurrence in the request; log(1 + n), or
            NEVER.
        off_line: Distance in tokens from the position that the request is copying (`follow_copy`)
            to the closest position at which the token follows a match in the request; log(1 + n).
        vote_share: Number of votes for the token as a related token (`weak_matches`), divided by
            the node's number of matching pointers.
        skip_share: Among the node's pointers that skip the newest token, the fraction that lead to
            this token; log odds.
        skips: Number of pointers to the token that skip the newest token; log(1 + n).
        top_pointers: Number of the node's pointers whose matches are in the same length band as its
            longest match; log(1 + n).
        pointers: Number of matching pointers of the node; log(1 + n).
        longest: Length of the node's longest match; log(1 + tokens).
        tokens: Number of different tokens that follow the node; log(1 + n).
        depth: Depth of the node; log(1 + n).
        recently_accepted: Running mean of the number of accepted tokens per step; log(1 + n).
        request_hits: Running fraction of steps in which the token after the request's longest match
            was correct.
        store_hits: Running fraction of steps in which the token after the datastore's longest match
            was correct.
        chance_of_parent: Logarithm of the node's confidence.
    """

    blend: OfSources
    top_share: OfSources
    longest_of_token: OfSources
    count: OfSources
    latest_of_longest: Number
    age: Number
    seen: Number
    off_line: Number
    vote_share: Number
    skip_share: Number
    skips: Number
    top_pointers: OfSources
    pointers: OfSources
    longest: OfSources
    tokens: OfSources
    depth: Number
    recently_accepted: Number
    request_hits: Number
    store_hits: Number
    chance_of_parent: Number


INPUTS = record_dtype(Inputs)
TOKEN_INPUTS: int = INPUTS.fields["top_pointers"][1] // 4  # inputs of the token; the node's follow


def _names() -> Iterator[str]:
    """Yield the name of each network input, as used in calibration files."""
    for name, (kind, _) in INPUTS.fields.items():
        words = name.replace("_", " ")
        yield from (f"{source} {words}" for source in COUNTED_TEXTS) if kind.shape else (words,)


FEATURES = tuple(_names())
WEIGHTS = (len(FEATURES) + 2) * HIDDEN + 1  # both layers with their biases
_MAX_LOG = 1023  # maximum count; higher counts are treated as this value
_LOGS = np.log1p(np.arange(_MAX_LOG + 1)).astype(np.float32)
_ESCAPE, _FLOOR = np.float32(ESCAPE), np.float32(SHARE_FLOOR)
_NOTHING = math.log(SHARE_FLOOR / (1 + SHARE_FLOOR))  # log odds of no share


@kernel
def describe_node(
    inputs: Inputs,
    counts: SuccessorCounts,
    depth: int,
    parent_confidence: float,
    request: RequestState,
) -> None:
    """Fill in the network inputs that describe the parent of candidate tokens.

    Args:
        inputs: Inputs to fill.
        counts: Counts of the tokens that follow the parent.
        depth: Depth of the parent.
        parent_confidence: Confidence of the parent.
        request: State of the request.
    """
    node = counts.node[0]
    for source in range(len(COUNTED_TEXTS)):
        total, top = 0, 0
        for band in range(BANDS):
            total += node.by_band[source, band]
            top = node.by_band[source, band] if node.by_band[source, band] > 0 else top
        inputs.pointers[source], inputs.top_pointers[source] = (
            _LOGS[min(total, _MAX_LOG)],
            _LOGS[min(top, _MAX_LOG)],
        )
        inputs.longest[source], inputs.tokens[source] = (
            _LOGS[node.longest[source]],
            _LOGS[node.tokens[source]],
        )
    inputs.depth = _LOGS[min(depth, _MAX_LOG)]
    inputs.recently_accepted = math.log1p(request.accepted)
    inputs.request_hits, inputs.store_hits = request.request_hits, request.store_hits
    inputs.chance_of_parent = math.log(parent_confidence)


@kernel
def describe_token(
    inputs: Inputs, counts: SuccessorCounts, which: int, best: int, end: int, seen: int
) -> None:
    """Fill in the network inputs that describe one candidate token.

    Args:
        inputs: Inputs to fill.
        counts: Counts of the tokens that follow the node.
        which: Index of the token in `counts.tokens`.
        best: Index in `counts.tokens` of the token after the longest match in the request, or -1.
        end: Text position after the node.
        seen: Latest position of the token in the request, or -1.
    """
    token, node = counts.tokens[which], counts.node[0]
    for source in range(len(COUNTED_TEXTS)):
        longest = token.longest[source]
        inputs.longest_of_token[source] = _LOGS[longest]
        if longest == 0:
            inputs.blend[source], inputs.top_share[source], inputs.count[source] = 0.0, 0.0, 0.0
            continue
        blend, share, count = _blend(node.by_band[source], token.by_band[source])
        inputs.blend[source] = math.log((blend + _FLOOR) / (1 - blend + _FLOOR))
        inputs.top_share[source] = (
            math.log((share + _FLOOR) / (1 - share + _FLOOR)) if share > 0 else _NOTHING
        )
        inputs.count[source] = _LOGS[min(count, _MAX_LOG)]
    inputs.latest_of_longest = 1.0 if which == best else 0.0
    inputs.age = NEVER if token.nearest < 0 else math.log1p(float(max(0, end - token.nearest)))
    inputs.seen = NEVER if seen < 0 else math.log1p(float(max(0, end - seen)))
    inputs.off_line = _LOGS[token.off]
    inputs.vote_share = token.votes / np.float32(max(1, node.matches))
    skipped = token.skips / np.float32(max(1, node.skips))
    inputs.skip_share = (
        math.log((skipped + _FLOOR) / (1 - skipped + _FLOOR)) if skipped > 0 else _NOTHING
    )
    inputs.skips = _LOGS[min(token.skips, _MAX_LOG)]


@kernel
def _blend(node: NDArray[np.int32], token: NDArray[np.int32]) -> tuple[float, float, int]:
    """Estimate a token's probability from one source, by blending match lengths.

    The method is PPM (prediction by partial matching). The function processes the length bands from
    short to long matches. For each band, it counts the matches of this length or longer: n matches
    in total, of which t are followed by the token. The estimate starts at 0 and is updated to

        (t + _ESCAPE * previous estimate) / (n + _ESCAPE)

    Bands without matches are skipped. Many long matches therefore outweigh the shorter ones.

    Args:
        node: Number of the node's matches, by length band.
        token: Number of these matches that are followed by the token, by length band.
    Returns:
        The blended fraction, the fraction among the longest matches, and the total number of
        matches that are followed by the token.
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
