"""Which states a draft reads in a forward: those of the pending tokens that the target has said."""

from __future__ import annotations

from collections.abc import Sequence as ListLike

import torch

from paceline.engine.layout import Layout
from paceline.engine.packing import Packing
from paceline.engine.reading.modules import Reading
from paceline.engine.sequence import Sequence


def states_to_read(seqs: ListLike[Sequence], laid_out: Layout | Packing) -> Reading | None:
    """Return what is known of the tokens of a forward; None where nothing is."""
    if isinstance(laid_out, Packing):
        places = [(0, start) for start in laid_out.starts.tolist()]
    else:
        front = laid_out.token_ids.shape[1] - laid_out.width
        places = [(row, front - fed) for row, fed in enumerate(laid_out.pending.tolist())]
    rows: list[int] = []
    columns: list[int] = []
    states: list[torch.Tensor] = []
    for seq, fed, (row, column) in zip(seqs, laid_out.pending.tolist(), places, strict=False):
        if seq.states is None:
            continue
        first, known = seq.states.known(seq.cached, seq.cached + fed)
        if len(known):
            start = column + first - seq.cached
            rows += [row] * len(known)
            columns += range(start, start + len(known))
            states.append(known)
    if not states:
        return None
    found = states[0] if len(states) == 1 else torch.cat(states)
    return Reading(torch.tensor([rows, columns]).to(found.device), found)
