"""Gather the target states that a draft model reads in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.core.request import Request
from paceline.model.forward_state import TargetStates
from paceline.model.padded_batch import PaddedBatch
from paceline.model.ragged_batch import RaggedBatch


def states_to_read(
    requests: Sequence[Request], batch: PaddedBatch | RaggedBatch
) -> TargetStates | None:
    """Return the target's known hidden states for the pending tokens of a batch.

    The states are known only for tokens that the target has chosen.

    Args:
        requests: Requests of the batch; each may have a log of the target's hidden states.
        batch: Padded or ragged batch with the tokens of these requests.
    Returns:
        The known states, with the row and column of each token; None if no state is known.
    """
    if isinstance(batch, RaggedBatch):
        starts = [(0, start) for start in batch.starts.tolist()]
    else:
        front = batch.token_ids.shape[1] - batch.width
        starts = [(row, front - count) for row, count in enumerate(batch.pending.tolist())]
    rows: list[int] = []
    columns: list[int] = []
    states: list[torch.Tensor] = []
    for request, count, (row, column) in zip(
        requests, batch.pending.tolist(), starts, strict=False
    ):
        if request.states is None:
            continue
        first, known = request.states.known(request.cached, request.cached + count)
        if len(known):
            start = column + first - request.cached
            rows += [row] * len(known)
            columns += range(start, start + len(known))
            states.append(known)
    if not states:
        return None
    merged = states[0] if len(states) == 1 else torch.cat(states)
    return TargetStates(torch.tensor([rows, columns]).to(merged.device), merged)
