"""Compute log-probabilities for answers and prompts from the model's own logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.drafter import Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.not_numbers import logits_error
from paceline.core.request import Request
from paceline.util.device_copies import Arrays, Pending, finish, upload
from paceline.verification.settings import LOGPROB_ROWS

Scored = list[dict[int, float]]


class _Tokens(NamedTuple):
    """The tokens of a request whose log-probabilities are needed.

    Attributes:
        rows: Row of the logits that predicts each token.
        token_ids: Token ids.
        num_best: Number of most likely tokens to report for each row.
    """

    rows: Sequence[int]
    token_ids: Sequence[int]
    num_best: int


def score_outcomes(outcomes: Sequence[Outcome], logits: NodeLogits) -> Pending:
    """Start computing the log-probabilities of a step's new tokens.

    Args:
        outcomes: Outcomes of a step.
        logits: Logits with rows in the order of `outcomes`.
    Returns:
        Pending list with one entry per outcome. For each new token, the entry contains the
        log-probabilities of the most likely tokens and of the new token. The entry is None if the
        request needs no log-probabilities.
    """
    texts: list[_Tokens | None] = []
    for start, outcome in zip(logits.starts, outcomes, strict=True):
        count, new = outcome.request.params.logprobs, outcome.new_token_ids
        if count is None:
            texts.append(None)
            continue
        walked = [start, *(start + 1 + node for node in outcome.accepted)]
        texts.append(_Tokens(walked[: len(new)], new, count))
    wanted = [tokens for tokens in texts if tokens is not None]
    if not wanted:
        return Pending((), lambda arrays: texts)
    pending = _score(logits.flat, wanted)

    def finished(arrays: Arrays) -> list[Scored | None]:
        scored = iter(pending.finish(arrays))
        return [None if tokens is None else next(scored) for tokens in texts]

    return Pending(pending.tensors, finished)


def _score(flat: Tensor, texts: Sequence[_Tokens]) -> Pending:
    """Start computing the log-probabilities of several requests' tokens.

    Args:
        flat: Logits, [rows, vocab].
        texts: Tokens of each request.
    Returns:
        Pending list with one entry per request: for each token, the log-probabilities of the most
        likely tokens and of the token itself.
    """
    rows = [row for tokens in texts for row in tokens.rows]
    if not rows:
        return Pending((), lambda arrays: [[] for _ in texts])
    token_ids = [token for tokens in texts for token in tokens.token_ids]
    count = min(max(tokens.num_best for tokens in texts), flat.shape[-1])
    which, own = upload(flat.device, rows, token_ids)
    parts = []
    for first in range(0, len(rows), LOGPROB_ROWS):
        part = slice(first, first + LOGPROB_ROWS)
        logits = flat[which[part]].float()
        log_probs, best = logits.log_softmax(-1), _most_likely(logits, count)
        parts.append(
            (best, log_probs.gather(-1, best), log_probs.gather(-1, own[part, None])[:, 0])
        )
    tensors = [torch.cat(column) for column in zip(*parts, strict=True)]

    def finished(arrays: Arrays) -> list[Scored]:
        ids, values, own_values = arrays
        scored, start = [], 0
        for tokens in texts:
            stop = start + len(tokens.rows)
            columns = (
                ids[start:stop, : tokens.num_best].tolist(),
                values[start:stop, : tokens.num_best].tolist(),
                tokens.token_ids,
                own_values[start:stop].tolist(),
            )
            scored.append(
                [
                    {**dict(zip(best, probs, strict=True)), token: value}
                    for best, probs, token, value in zip(*columns, strict=True)
                ]
            )
            start = stop
        return scored

    return Pending(tensors, finished)


def _most_likely(logits: Tensor, count: int) -> Tensor:
    """Return the most likely tokens of each row, [rows, count].

    Among equal logits, the lowest token id comes first. With torch's `topk`, the order of equal
    logits depends on `count`, and therefore on the other requests of the step.

    Args:
        logits: Logits, float32 [rows, vocab].
        count: Number of tokens per row; at most the vocabulary size.
    """
    bits = (logits + 0.0).view(torch.int32).long()  # adding 0.0 turns -0.0 into 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers that sort in the order of the logits
    last = logits.shape[-1] - 1
    ranks = (ordered << 32) + torch.arange(last, -1, -1, device=logits.device)
    return ranks.topk(count, dim=-1).indices


def score_prompts(requests: Sequence[Request], logits: NodeLogits, chunk: int) -> NodeLogits:
    """Add the log-probabilities of processed prompt tokens to their requests.

    Requests that do not need these log-probabilities are unchanged.

    Args:
        requests: Requests, before this step's tokens are committed to the cache.
        logits: Logits from the forward pass, including the rows that score prompt tokens.
        chunk: Maximum number of pending tokens per request in the forward pass.
    Returns:
        The logits without the rows that score prompt tokens.
    """
    scoring = [
        (request, _processed(request, logits.starts[row], min(request.pending, chunk)))
        for row, request in enumerate(requests)
        if request.scoring
    ]
    (scored,) = finish([_score(logits.flat, [tokens for _, tokens in scoring])])
    for (request, _), new in zip(scoring, scored, strict=True):
        assert request.prompt_logprobs is not None, "it is scored"
        request.prompt_logprobs += new
        if new and any(map(math.isnan, new[-1].values())):
            request.failure = request.failure or logits_error(logits.flat.dtype)
    return logits.without_prompts()


def _processed(request: Request, start: int, num_processed: int) -> _Tokens:
    """Return the prompt tokens whose log-probabilities a forward pass computes.

    After a preemption, the first tokens are processed again, but not scored again.

    Args:
        request: Request with `prompt_logprobs`.
        start: Row of the logits that predicts the token after the newest processed token.
        num_processed: Number of the request's pending tokens in the forward pass.
    """
    known, count = request.prompt_logprobs, request.params.prompt_logprobs
    assert known is not None, "it is scored"
    assert count is not None, "it is scored"
    # The row that scores token i is offset + i.
    offset = start - (num_processed - 1) - request.cached - 1
    end = min(request.cached + num_processed + 1, request.prompt_length)
    scored = range(len(known), max(len(known), end))
    return _Tokens(
        range(offset + scored.start, offset + scored.stop),
        request.token_ids[scored.start : scored.stop],
        count,
    )
