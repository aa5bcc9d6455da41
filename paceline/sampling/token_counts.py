"""Count how often each token occurs in a request, for penalties.

The counts stay on the device between steps. Each step adds only its new tokens to the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.request import Request
from paceline.core.token_counts import TokenCounts
from paceline.core.tree import IntArray

TEXT, ANSWER = range(2)  # rows of a request's counts: the whole text, and the answer alone


class CountChanges(NamedTuple):
    """Changes to the token counts of several requests.

    Attributes:
        indices: Indices of the counts to change, in the flattened table of counts, [n].
        amounts: Amounts to add to these counts, float32 [n]. Negative for removed tokens.
    """

    indices: IntArray
    amounts: NDArray[np.float32]


def count_changes(requests: Sequence[Request], vocab: int) -> CountChanges:
    """Return the changes that bring the requests' token counts up to date.

    Args:
        requests: Requests of a step, in the order of their rows in the table of counts.
        vocab: Size of the vocabulary, which is the number of columns in the table.
    """
    indices, amounts = [], []
    for row, request in enumerate(requests):
        known = request.token_counts
        start = row * 2 * vocab
        old, new = [] if known is None else known.answer, request.output_ids
        if known is None:
            prompt = np.array(request.token_ids[: request.prompt_length], dtype=np.int64)
            indices.append(start + TEXT * vocab + prompt)
            amounts.append(np.ones(len(prompt), dtype=np.float32))
        common = _common(old, new)
        for tokens, amount in ((old[common:], -1.0), (new[common:], 1.0)):
            if tokens:
                columns = np.array(tokens, dtype=np.int64) + start
                indices += [columns + TEXT * vocab, columns + ANSWER * vocab]
                amounts.append(np.full(2 * len(tokens), amount, dtype=np.float32))
    return CountChanges(
        np.concatenate([np.empty(0, dtype=np.int64), *indices]),
        np.concatenate([np.empty(0, dtype=np.float32), *amounts]),
    )


def counts_of(requests: Sequence[Request], changes: Sequence[Tensor], vocab: int) -> Tensor:
    """Update the requests' token counts, and return them.

    Args:
        requests: Requests of a step.
        changes: The two arrays of `count_changes` for these requests, copied to the device.
        vocab: Size of the vocabulary.
    Returns:
        Counts, float32 [requests, 2, vocab]; the second dimension is indexed by TEXT and ANSWER.
    """
    indices, amounts = changes
    known = [request.token_counts for request in requests]
    table = _shared_table(known)
    if table is None:
        nothing = torch.zeros(2, vocab, device=indices.device)
        table = torch.stack(
            [nothing if counts is None else counts.table[counts.row] for counts in known]
        )
    table.view(-1).index_add_(0, indices, amounts)
    for row, request in enumerate(requests):
        request.token_counts = TokenCounts(table, row, request.output_ids)
    return table


def _shared_table(known: Sequence[TokenCounts | None]) -> Tensor | None:
    """Return the table whose rows are exactly these counts, in this order, or None."""
    if known[0] is None or len(known[0].table) != len(known):
        return None
    table = known[0].table
    in_order = all(
        counts is not None and counts.table is table and counts.row == row
        for row, counts in enumerate(known)
    )
    return table if in_order else None


def _common(old: list[int], new: list[int]) -> int:
    """Return the length of the longest common prefix of two token lists."""
    if new[: len(old)] == old:
        return len(old)
    pairs = zip(old, new, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))
