"""Track acceptance and source accuracy of one request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.sssd.request_index import RequestState
from paceline.util.compiled import kernel

_NO_COPY = -(1 << 30)  # as copy_place: nothing is being copied, nor will be soon
_FIRST_ACCEPTED, _FIRST_HITS = 1.0, 0.4  # the running means before the first step
_RATE = 0.15  # of the running means


@kernel
def note_step(request: RequestState, new_tokens: NDArray[np.int64]) -> None:
    """Record the result of the last step: accepted tokens, and which source was right."""
    if not request.started:
        request.accepted, request.request_hits, request.store_hits = (
            _FIRST_ACCEPTED,
            _FIRST_HITS,
            _FIRST_HITS,
        )
        request.started, request.copy_place = 1, _NO_COPY
    elif new_tokens.size > 0:
        request.accepted += _RATE * (new_tokens.size - 1 - request.accepted)
        if request.request_guess >= 0:
            hit = 1.0 if request.request_guess == new_tokens[0] else 0.0
            request.request_hits += _RATE * (hit - request.request_hits)
        if request.store_guess >= 0:
            hit = 1.0 if request.store_guess == new_tokens[0] else 0.0
            request.store_hits += _RATE * (hit - request.store_hits)
    request.copy_place += new_tokens.size
    request.request_guess, request.store_guess = -1, -1
