"""transformers' logits processors for a sequence that grows by several tokens at once.

A processor may remember what it was asked, so it is asked as plain decoding would ask it: once for
each token that is emitted, in order, with all tokens before it. Nodes of a draft tree that the walk
does not reach are never shown to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.errors import ConfigError

Processor = Callable[[Tensor, Tensor], Tensor]


class Processed:
    """Processors and the tokens they have been told of.

    Args:
        process: the processors as one, such as a `LogitsProcessorList`.
        ids: [1, n], what precedes the next token.
    """

    def __init__(self, process: Processor, ids: Tensor) -> None:
        self._process = process
        self._ids = ids
        self._unwritten: list[int] = []

    @property
    def ids(self) -> Tensor:
        """[1, n]: all tokens so far."""
        if self._unwritten:
            new = torch.tensor([self._unwritten], device=self._ids.device)
            self._ids, self._unwritten = torch.cat([self._ids, new], dim=-1), []
        return self._ids

    def __len__(self) -> int:
        return int(self._ids.shape[1]) + len(self._unwritten)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Tell of tokens that have been chosen."""
        self._unwritten.extend(token_ids)

    def __call__(self, scores: Tensor) -> Tensor:
        """Scores [1, vocab] of the token that follows `ids`.

        Args:
            scores: float32 [1, vocab], which may be changed in place.
        """
        return self._process(self.ids, scores)


class OwnProcessors:
    """The processors of one request, in order: shallow copies, and what they return is checked.

    Raises:
        ConfigError: from a call, one that fails or returns anything but scores of the same shape.
    """

    def __init__(self, processors: Sequence[Callable[..., Any]]) -> None:
        self._processors = [copy.copy(processor) for processor in processors]

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [1, vocab] as all processors leave them."""
        for processor in self._processors:
            name, shape = getattr(processor, "__name__", type(processor).__name__), scores.shape
            try:
                scores = processor(ids, scores)
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
                raise ConfigError(
                    f"logits_processors: got {type(error).__name__} from {name!r} [{reason}];"
                    " expected scores. Correct the processor, or leave it out."
                ) from error
            if not isinstance(scores, Tensor) or scores.shape != shape:
                found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
                raise ConfigError(
                    f"logits_processors: got {found} from {name!r}; expected scores of shape"
                    f" {tuple(shape)}. Return them from it."
                )
        return scores.float()
