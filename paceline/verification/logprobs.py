"""Compute log-probabilities for answers and prompts from the model's own logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.node_logits import NodeLogits
from paceline.core.not_numbers import logits_error
from paceline.core.request import Request
from paceline.verification.settings import LOGPROB_ROWS


def logprobs_of(logits: Tensor, token_ids: Sequence[int], count: int) -> list[dict[int, float]]:
    """Return the log-probabilities of the top tokens and one given token per position.

    Args:
        logits: Logits [tokens, vocab].
        token_ids: The given token at each position.
        count: Number of top tokens.
    """
    log_probs = logits.float().log_softmax(-1)
    best = log_probs.topk(min(count, log_probs.shape[-1]), dim=-1)
    columns = torch.tensor(token_ids, device=log_probs.device)[:, None]
    own_values = log_probs.gather(-1, columns)[:, 0].tolist()
    rows = zip(best.indices.tolist(), best.values.tolist(), token_ids, own_values, strict=True)
    return [
        {**dict(zip(ids, values, strict=True)), token: value} for ids, values, token, value in rows
    ]


def score_prompts(requests: Sequence[Request], logits: NodeLogits, chunk: int) -> NodeLogits:
    """Add processed prompt tokens' log-probabilities to the requests that want them.

    Args:
        requests: Requests before this step's tokens are committed to the cache.
        logits: Logits from the forward pass, including the rows of scored tokens.
        chunk: Maximum number of pending tokens per request in the forward pass.
    Returns:
        The logits without the rows of scored tokens.
    """
    for row, request in enumerate(requests):
        if request.scoring:
            _score(request, logits, row, min(request.pending, chunk))
    return logits.without_prompts()


def _score(request: Request, logits: NodeLogits, row: int, num_processed: int) -> None:
    known, count = request.prompt_logprobs, request.params.prompt_logprobs
    assert known is not None, "it is scored"
    assert count is not None, "it is scored"
    # The row that scores token i is offset + i.
    offset = logits.starts[row] - (num_processed - 1) - request.cached - 1
    # After a preemption, the first tokens are computed again, but they have already been scored.
    scored: list[dict[int, float]] = []
    end = min(request.cached + num_processed + 1, request.prompt_length)
    for first in range(len(known), end, LOGPROB_ROWS):
        token_ids = request.token_ids[first : min(first + LOGPROB_ROWS, end)]
        rows = logits.flat[offset + first : offset + first + len(token_ids)]
        scored += logprobs_of(rows, token_ids, count)
    known += scored
    if scored and any(map(math.isnan, scored[-1].values())):
        request.failure = request.failure or logits_error(logits.flat.dtype)
