"""Draft the target's latest top tokens as children of the root (LogitSpec).

The root is the token that the target chose from its last logits. The other top tokens in these
logits often occur one position later. For example, if "the" was chosen and "new" ranked second, the
text may continue with "the new". The search then extends such a child like any other node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core.drafter import Outcome
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import IntArray
from paceline.drafters.sssd.settings import MIN_PATH_CONFIDENCE, TOP_TOKEN_CONFIDENCE
from paceline.drafters.sssd.tree import Child
from paceline.util.compiled import Records, kernel

_RECYCLED = int(Origin.RECYCLED)


class LastTopTokens:
    """Stores the most likely tokens according to each request's last logits.

    These are the logits from which the request's newest token was chosen.

    Args:
        count: Maximum number of tokens per request; 0 disables this source of draft tokens.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._tokens: dict[int, list[int]] = {}  # by request id

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Store the target's top tokens after the last accepted node of each outcome."""
        if self._count:
            for outcome in outcomes:
                if outcome.target_top is None:  # no top tokens are reported while drafting pauses
                    self._tokens.pop(outcome.request.id, None)
                else:
                    row = outcome.accepted[-1] + 1 if outcome.accepted else 0
                    self._tokens[outcome.request.id] = outcome.target_top.token_ids[row].tolist()

    def rows(self, requests: Sequence[Request]) -> IntArray:
        """Return each request's stored top tokens, except for the request's newest token.

        The result has the shape [batch, count] and is padded with -1.
        """
        rows = []
        for request in requests:
            tokens, newest = self._tokens.get(request.id, ()), request.token_ids[-1]
            others = [token for token in tokens if token != newest][: self._count]
            rows.append(others + [-1] * (self._count - len(others)))
        return np.array(rows, dtype=np.int64).reshape(len(requests), self._count)

    def stop(self, request: Request) -> None:
        """Discard the stored top tokens of a request that has ended."""
        self._tokens.pop(request.id, None)


@kernel
def offer_top_tokens(frontier: Records[Child], waiting: int, top_tokens: NDArray[np.int64]) -> int:
    """Add top tokens to the frontier as children of the root; return its new size.

    The frontier contains the candidates for the next tree node. The candidates that retrieval has
    found keep their probabilities. Each top token that retrieval has not found becomes a candidate,
    and is assigned a fraction of the remaining probability.

    Args:
        frontier: Candidates; only the first `waiting` entries are valid.
        waiting: Number of candidates on the frontier so far.
        top_tokens: Top tokens, most likely first, [count]; -1 marks a missing token.
    """
    found = 0.0
    for index in range(waiting):
        found += frontier[index].confidence
    for rank in range(len(top_tokens)):
        token, confidence = top_tokens[rank], TOP_TOKEN_CONFIDENCE[rank] * (1.0 - found)
        known = token < 0
        for index in range(waiting):
            known = known or frontier[index].token == token
        if known or confidence <= MIN_PATH_CONFIDENCE or waiting == len(frontier):
            continue
        child = frontier[waiting]
        child.parent, child.token, child.origin = 0, token, _RECYCLED
        child.confidence = child.path_confidence = confidence
        waiting += 1
    return waiting
