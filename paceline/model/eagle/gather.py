"""Which states a draft reads in a forward: those of the pending tokens that the target has said."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.core.request import Request
from paceline.model.forward_state import TargetStates
from paceline.model.padded_batch import PaddedBatch
from paceline.model.ragged_batch import RaggedBatch


def states_to_read(
    requests: Sequence[Request], laid_out: PaddedBatch | RaggedBatch
) -> TargetStates | None:
    """Return what is known of the tokens of a forward; None where nothing is."""
    if isinstance(laid_out, RaggedBatch):
        places = [(0, start) for start in laid_out.starts.tolist()]
    else:
        front = laid_out.token_ids.shape[1] - laid_out.width
        places = [(row, front - fed) for row, fed in enumerate(laid_out.pending.tolist())]
    rows: list[int] = []
    columns: list[int] = []
    states: list[torch.Tensor] = []
    for request, fed, (row, column) in zip(
        requests, laid_out.pending.tolist(), places, strict=False
    ):
        if request.states is None:
            continue
        first, known = request.states.known(request.cached, request.cached + fed)
        if len(known):
            start = column + first - request.cached
            rows += [row] * len(known)
            columns += range(start, start + len(known))
            states.append(known)
    if not states:
        return None
    found = states[0] if len(states) == 1 else torch.cat(states)
    return TargetStates(torch.tensor([rows, columns]).to(found.device), found)
