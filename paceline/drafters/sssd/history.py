"""Track how often a request's draft tokens and its sources' guesses are correct."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.sssd.request_index import RequestState
from paceline.drafters.sssd.settings import INITIAL_ACCEPTED, INITIAL_HITS, MEAN_RATE
from paceline.util.compiled import kernel

_NO_COPY = -(1 << 30)  # initial copy_position, which stays below 0 however long the output is


@kernel
def note_step(request: RequestState, new_tokens: NDArray[np.int64]) -> None:
    """Update a request's mean number of accepted tokens and its sources' hit rates.

    A source has a hit if the token that it guessed is the first new token.

    Args:
        request: State of the request.
        new_tokens: Tokens generated since the previous call.
    """
    if not request.started:
        request.accepted = INITIAL_ACCEPTED
        request.request_hits = request.store_hits = INITIAL_HITS
        request.started, request.copy_position = 1, _NO_COPY
    elif new_tokens.size > 0:
        request.accepted += MEAN_RATE * (new_tokens.size - 1 - request.accepted)
        if request.request_guess >= 0:
            hit = 1.0 if request.request_guess == new_tokens[0] else 0.0
            request.request_hits += MEAN_RATE * (hit - request.request_hits)
        if request.store_guess >= 0:
            hit = 1.0 if request.store_guess == new_tokens[0] else 0.0
            request.store_hits += MEAN_RATE * (hit - request.store_hits)
    request.copy_position += new_tokens.size
    request.request_guess, request.store_guess = -1, -1
