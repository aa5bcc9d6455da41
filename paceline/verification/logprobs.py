"""Log-probabilities by the model's own logits: of an answer's tokens, and of a prompt's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.node_logits import NodeLogits
from paceline.core.not_numbers import logits_error
from paceline.core.request import Request

# logits turned into log-probabilities at once, which takes memory for each token of the vocabulary
_ROWS = 64


def logprobs_of(logits: Tensor, token_ids: Sequence[int], count: int) -> list[dict[int, float]]:
    """Return the log-probabilities of the likeliest tokens, and of one token, at each position.

    Args:
        logits: [tokens, vocab].
        token_ids: the token of each position.
        count: how many of the likeliest tokens.
    """
    every = logits.float().log_softmax(-1)
    best = every.topk(min(count, every.shape[-1]), dim=-1)
    own = every.gather(-1, torch.tensor(token_ids, device=every.device)[:, None])[:, 0].tolist()
    rows = zip(best.indices.tolist(), best.values.tolist(), token_ids, own, strict=True)
    return [
        {**dict(zip(ids, values, strict=True)), token: value} for ids, values, token, value in rows
    ]


def score_prompts(requests: Sequence[Request], logits: NodeLogits, chunk: int) -> NodeLogits:
    """Add the log-probabilities of fed prompt tokens to the sequences that are scored.

    Args:
        requests: as they were fed; what was fed is not yet in the cache.
        logits: of their forward, with the rows of scored tokens.
        chunk: most pending tokens that the forward took of a sequence.
    Returns:
        the logits without those rows.
    """
    for row, request in enumerate(requests):
        if request.scoring:
            _score(request, logits, row, min(request.pending, chunk))
    return logits.without_prompts()


def _score(request: Request, logits: NodeLogits, row: int, fed: int) -> None:
    known, count = request.prompt_logprobs, request.params.prompt_logprobs
    assert known is not None, "it is scored"
    assert count is not None, "it is scored"
    # of the row that a token is scored by
    offset = logits.starts[row] - (fed - 1) - request.cached - 1
    # After a preemption the first tokens are fed again: they are scored already.
    scored: list[dict[int, float]] = []
    for first in range(len(known), min(request.cached + fed, request.prompt_length - 1) + 1, _ROWS):
        token_ids = request.token_ids[
            first : min(first + _ROWS, request.cached + fed + 1, request.prompt_length)
        ]
        rows = logits.flat[offset + first : offset + first + len(token_ids)]
        scored += logprobs_of(rows, token_ids, count)
    known += scored
    if scored and any(map(math.isnan, scored[-1].values())):
        request.failure = request.failure or logits_error(logits.flat.dtype)
