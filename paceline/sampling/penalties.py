"""Penalise tokens that already occur in a request's text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.sampling.score_indices import ScoreIndices
from paceline.sampling.settings import CPU_PART_SCORES
from paceline.sampling.token_counts import ANSWER, TEXT


def penalise(
    scores: Tensor,
    counts: Tensor,
    indices: ScoreIndices,
    on_device: Sequence[Tensor],
    requests: Sequence[Request],
) -> None:
    """Apply repetition, frequency and presence penalties to scores, in place.

    Args:
        scores: Scores [rows, vocab]. Each row belongs to a root or a node of a draft tree.
        counts: Result of `counts_of`, which counts each token in each request's text (prompt and
            answer), and in the answer alone.
        indices: Result of `find_score_indices` for the rows of `scores`.
        on_device: The arrays `owner`, `penalties` and `paths` of `indices`, copied to the device.
        requests: Requests whose scores need adjustments.
    """
    owner, penalties, paths = on_device
    vocab, num_rows = scores.shape[1], len(scores)
    # On a CPU, process groups of rows that fit into the cache.
    step = max(1, CPU_PART_SCORES // vocab) if scores.device.type == "cpu" else num_rows
    firsts = [*range(0, num_rows, step), num_rows]
    ends = np.searchsorted(indices.paths // vocab, firsts).tolist()
    repeats = any(request.params.repetition_penalty != 1.0 for request in requests)
    counts_answer = any(
        request.params.frequency_penalty or request.params.presence_penalty for request in requests
    )

    def counts_at(kind: int, rows: slice, own_paths: Tensor) -> Tensor:
        """Return how often each token occurs up to each row's node, [rows, vocab].

        `kind` is `TEXT` to count tokens in the prompt and the answer, or `ANSWER` to count only
        those in the answer. The tokens on the path to the node count in both cases.
        """
        if not len(indices.paths) and num_rows == len(requests):
            return counts[rows, kind]
        at_nodes = counts[:, kind][owner[rows]]
        ones = torch.ones_like(own_paths, dtype=at_nodes.dtype)
        at_nodes.view(-1).index_add_(0, own_paths, ones)
        return at_nodes

    for (first, last), (start, stop) in zip(pairwise(firsts), pairwise(ends), strict=True):
        rows, own_paths = slice(first, last), paths[start:stop]
        own_paths = own_paths - first * vocab if first else own_paths
        part = scores[rows]
        repetition, frequency, presence = penalties[:, rows, None]
        if repeats:
            seen = counts_at(TEXT, rows, own_paths) > 0
            penalised = torch.where(part < 0, part * repetition, part / repetition)
            torch.where(seen, penalised, part, out=part)
        if counts_answer:
            answer = counts_at(ANSWER, rows, own_paths)
            part -= frequency * answer
            part -= presence * (answer > 0)
