"""Run transformers logits processors in steps that emit several tokens.

A logits processor may keep state. paceline therefore calls each processor exactly as in plain
decoding: once per emitted token, in order, with all preceding tokens. A processor never receives
rejected draft tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.util.device_copies import upload

Processor = Callable[[Tensor, Tensor], Tensor]


class Processed:
    """A request's logits processors, with the tokens that the processors read.

    Args:
        process: All processors combined into one callable, such as a `LogitsProcessorList`.
        ids: Tokens of the request, [1, n].
    """

    def __init__(self, process: Processor, ids: Tensor) -> None:
        self._process = process
        self._ids = ids
        self._unwritten: list[int] = []

    @property
    def ids(self) -> Tensor:
        """Return all tokens so far, [1, n]."""
        if self._unwritten:
            (new,) = upload(self._ids.device, self._unwritten)
            self._ids, self._unwritten = torch.cat([self._ids, new[None]], dim=-1), []
        return self._ids

    def __len__(self) -> int:
        return int(self._ids.shape[1]) + len(self._unwritten)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append newly chosen tokens to `ids`."""
        self._unwritten.extend(token_ids)

    def __call__(self, scores: Tensor) -> Tensor:
        """Return the processed scores for the token after `ids`, [1, vocab].

        Args:
            scores: The model's scores, float32 [1, vocab]; may be modified in place.
        """
        return self._process(self.ids, scores)


class OwnProcessors:
    """Shallow copies of one request's processors, called in order.

    Raises:
        ConfigError: A processor fails or changes the shape of the scores.
    """

    def __init__(self, processors: Sequence[Callable[..., Any]]) -> None:
        self._processors = [copy.copy(processor) for processor in processors]

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores after applying all processors, [1, vocab]."""
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
                given = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
                raise ConfigError(
                    f"logits_processors: got {given} from {name!r}; expected scores of shape"
                    f" {tuple(shape)}. Return scores of this shape."
                )
        return scores.float()
