"""Which of our attention functions a forward uses, and what it is told beside the mask; never
left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from transformers import PretrainedConfig

from paceline.core.attention_metadata import AttentionMetadata

BY_SDPA, BY_POSITION = "paceline_sdpa", "paceline"  # names in transformers' table


@dataclass(frozen=True, slots=True)
class Forward:
    """What our attention functions are told about the forward under way; see `tree_attention`."""

    causal: int = 0
    order: AttentionMetadata | None = None


_ELSEWHERE = Forward()
_under_way = threading.local()


def current_forward() -> Forward:
    """The forward this thread is in; one without causal columns and without an order where it is
    none of ours.
    """
    forward: Forward = getattr(_under_way, "forward", _ELSEWHERE)
    return forward


@contextmanager
def tree_attention(
    config: PretrainedConfig, causal: int = 0, order: AttentionMetadata | None = None
) -> Iterator[None]:
    """For the forward inside, let a model with this (text) config use one of our attention
    functions.

    Args:
        config: one that no other thread reads, see `paceline.model.model_view`.
        causal: the first so many columns see exactly themselves and the columns before them, and
            nothing is cached: a prompt.
        order: the keys by position; with it attention is by position, batch-invariant, else by
            SDPA.
    """
    before = config._attn_implementation
    _under_way.forward = Forward(causal, order)
    config._attn_implementation = BY_SDPA if order is None else BY_POSITION
    try:
        yield
    finally:
        config._attn_implementation = before
        _under_way.forward = _ELSEWHERE
