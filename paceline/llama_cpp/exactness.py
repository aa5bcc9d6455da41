"""Check that a text has bit-identical logits in every forward pass.

The check decodes a text on this machine, one token at a time. It compares the logits with those of
passes over several rows and over trees. Other requests run forward passes in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.settings import BatchInvariant
from paceline.core.tree import DraftTree
from paceline.errors import ConfigError
from paceline.llama_cpp.gguf_model import GgufModel
from paceline.llama_cpp.model_key import gguf_key
from paceline.llama_cpp.settings import CHECK_ROWS, CHECK_STRIDE, CHECK_TOKENS
from paceline.llama_cpp.target import GgufTarget
from paceline.util import result_cache

_KIND = "llama-cpp-exactness-v2"  # increase the number when the check changes


@dataclass(frozen=True, slots=True)
class Exactness:
    """Result of the check for bit-identical logits.

    Attributes:
        on: Whether the logits after each token depend, bit for bit, only on the text so far.
        reason: Explanation of the result, for messages.
    """

    on: bool
    reason: str

    @classmethod
    def read(cls, attributes: dict[str, Any]) -> Exactness:
        """Restore a result from its saved attributes."""
        return cls(**attributes)


def resolve_exactness(
    model: GgufModel, setting: BatchInvariant, threads: int, max_batch: int | None = 1
) -> Exactness:
    """Decide whether a model is decoded batch-invariantly.

    Args:
        model: The model.
        setting: True, False or "auto". With several threads, "auto" keeps batch invariance off:
            llama.cpp divides the only row of a one-token forward pass among the threads. Batch
            invariance would require a second row in all these passes.
        threads: Number of CPU threads.
        max_batch: Maximum number of requests per forward pass; None means no limit.
    Raises:
        ConfigError: The setting is True, but the check fails; or the setting is invalid.
    """
    if setting not in (True, False, "auto"):
        raise ConfigError(f"\0batch_invariant\0: got {setting!r}; expected True, False or 'auto'.")
    if setting is False:
        return Exactness(False, "it is switched off")
    if setting == "auto" and threads > 1:
        return Exactness(
            False,
            f"llama.cpp divides a single token's work among {threads} threads, which changes its"
            " bits; --batch-invariant on (in Python, batch_invariant=True) adds a second token to"
            " such forward passes",
        )
    if model.is_recurrent and max_batch != 1:
        reason = "requests of a model with recurrent layers share the order of their cache"
        if setting is True:
            raise ConfigError(
                f"\0batch_invariant\0: got True; {reason}. Pass \0max_batch=1\0, or 'auto'."
            )
        return Exactness(False, reason)
    key = result_cache.ResultKey(
        _KIND, gguf_key(model, threads), f"exactness of {model.description}", "exactness.json"
    )
    result = result_cache.load_or_compute(key, lambda: _check(model, threads), Exactness.read)
    if setting is True and not result.on:
        raise ConfigError(f"\0batch_invariant\0: got True; {result.reason}. Pass 'auto' or False.")
    return result


def _check(model: GgufModel, threads: int) -> Exactness:
    if model.on_gpu:
        return Exactness(False, "it is available on CPUs only")
    target = GgufTarget(model, threads, exact=True)
    tokens = [
        index * CHECK_STRIDE % model.vocab_size for index in range(CHECK_TOKENS + max(CHECK_ROWS))
    ]
    prompt, answer = tokens[:CHECK_TOKENS], tokens[CHECK_TOKENS:]
    other = _opened(target, answer[:3])
    target.feed([other])
    expected = _one_by_one(target, prompt, answer)
    for rows in CHECK_ROWS:
        request = _opened(target, prompt)
        while request.pending > 1:
            target.prefill_chunk = min(rows, request.pending - 1)
            target.feed([request])
        other.append([tokens[rows]])
        nodes = DraftTree.chain(answer[: rows - 1])
        logits = target.forward_nodes([other, request], [DraftTree.chain([0]), nodes])
        target.commit([[0], []])
        other.append([0])
        if not torch.equal(logits[1], expected[:rows]):
            return Exactness(
                False,
                f"llama.cpp computes other bits for {rows} tokens at once than for a single one",
            )
        target.close(request)
    return Exactness(True, "the self-test passed on this machine")


def _one_by_one(target: GgufTarget, prompt: list[int], answer: list[int]) -> Tensor:
    """Decode an answer one token at a time, and return the logits.

    The first row contains the logits after the prompt. The other rows contain the logits after each
    token of the answer, so the shape is [1 + answer, vocab].
    """
    request = _opened(target, prompt)
    logits = [target.feed([request])[0]]
    for token in answer:
        request.append([token])
        logits.append(target.feed([request])[0])
    target.close(request)
    return torch.cat(logits)


def _opened(target: GgufTarget, tokens: list[int]) -> Request:
    request = Request(tokens, SamplingParams(max_new_tokens=len(tokens) + CHECK_TOKENS))
    target.open(request)
    return request
