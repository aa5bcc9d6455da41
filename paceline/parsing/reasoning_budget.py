"""Limit the number of reasoning tokens in an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.parsing.reasoning import ReasoningMarkers
from paceline.text.detokenizer import Detokenizer


class ReasoningBudget:
    """Ends the reasoning of an answer after a maximum number of tokens.

    When the limit is reached, this logits processor forces the closing text of the reasoning. The
    processor serves one answer; to reuse it for another answer, make a shallow copy.

    Args:
        tokenizer: Tokenizer of the model.
        markers: Texts that enclose the reasoning.
        is_open: Whether the prompt has already opened the reasoning.
        max_tokens: Maximum number of reasoning tokens; at least 0.
    Raises:
        ConfigError: The tokenizer cannot encode the closing text of the reasoning.
    """

    def __init__(
        self, tokenizer: Any, markers: ReasoningMarkers, is_open: bool, max_tokens: int
    ) -> None:
        self._tokenizer, self._markers, self._is_open = tokenizer, markers, is_open
        self._max_tokens = max_tokens
        encoded = tokenizer(markers.close, add_special_tokens=False)["input_ids"]
        self._end_ids = [int(token) for token in encoded]
        if not self._end_ids:
            raise ConfigError(
                f"max_reasoning_tokens: the tokenizer has no tokens for {markers.close!r}. Leave"
                " the limit out."
            )
        self._detokenizer = Detokenizer(tokenizer, (), skip_special_tokens=False)
        self._text = ""
        self._num_seen = -1  # until the first call, which passes the prompt
        self._num_tokens = self._num_forced = 0
        self._has_ended = False

    def __copy__(self) -> ReasoningBudget:
        return ReasoningBudget(self._tokenizer, self._markers, self._is_open, self._max_tokens)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores; once the limit is reached, allow only a single token.

        Once the reasoning has reached its token limit, each call allows only the next token of the
        closing text. Before the limit and after the closing text, the scores are unchanged.

        Args:
            ids: Token ids of the prompt and of the answer so far; [1, tokens].
            scores: Logits of the next token; [1, vocabulary].
        """
        if self._num_seen < 0:
            self._num_seen = ids.shape[1]
        self._observe(ids[0, self._num_seen :].tolist())
        self._num_seen = ids.shape[1]
        if not self._is_due:
            return scores
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._end_ids[self._num_forced]] = 0.0
        return forced

    def forced_tokens(self, new_token_ids: Sequence[int]) -> list[int]:
        """Process new tokens of the answer, and return the tokens that must follow.

        Args:
            new_token_ids: Tokens generated since the previous call.
        """
        self._observe(new_token_ids)
        return self._end_ids[self._num_forced :] if self._is_due else []

    @property
    def _is_due(self) -> bool:
        return not self._has_ended and self._num_tokens >= self._max_tokens and self._reasons

    @property
    def _reasons(self) -> bool:
        return self._is_open or self._text.lstrip().startswith(self._markers.open)

    def _observe(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            if self._has_ended:
                return
            was_due = self._is_due
            self._text += self._detokenizer.push(token)
            self._num_tokens += self._reasons
            self._num_forced += was_due
            start = self._text.lstrip()[: len(self._markers.open)]
            self._has_ended = (
                self._markers.close in self._text
                or self._num_forced == len(self._end_ids)
                or not (self._is_open or self._markers.open.startswith(start))
            )
