"""Define what the engine needs of a target model with a KV cache.

`paceline.model.cached_lm.CachedLM` implements it for transformers models. The engine, the draft
budget and the verification rules import this module and no model code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class NodeLogits(Protocol):
    """Logits of one forward pass: after the last token of each request and after each node.

    Attributes:
        flat: Tensor [rows, vocab], the rows of all requests in order.
        counts: Rows of each request.
        scored: Rows of prompt tokens in front of them, per request.
        states: What the LM head read for each row, [rows, 1 + layers, hidden], if captured.
    """

    flat: Tensor
    counts: list[int]
