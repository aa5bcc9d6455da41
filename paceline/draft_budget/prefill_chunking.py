"""Limit prefill chunks, so that a long prompt does not stall open streams."""

from __future__ import annotations

from paceline.draft_budget.averages import MovingAverage
from paceline.draft_budget.settings import DEFAULTS, DraftBudgetSettings


class PrefillChunkController:
    """Chooses the size of prefill chunks from the measured speed of forward passes.

    Args:
        max_tokens: Largest chunk, in tokens.
        settings: Maximum stall, and limits on the chunk size.
    """

    def __init__(self, max_tokens: int, settings: DraftBudgetSettings = DEFAULTS) -> None:
        self._settings = settings
        self._max_tokens = max_tokens
        self._chunk = min(settings.first_chunk_tokens, max_tokens)
        self._step_s = MovingAverage(settings.prefill_rate)  # seconds per decode step
        self._token_s = MovingAverage(settings.prefill_rate)  # seconds per prompt token

    @property
    def chunk(self) -> int:
        """Maximum number of prompt tokens in the next forward pass, over all requests."""
        return self._chunk

    def note_decode(self, seconds: float) -> None:
        """Record the duration, in seconds, of a step without prompts."""
        self._step_s.add(seconds)

    def note_prompts(self, tokens: int, seconds: float) -> None:
        """Record the duration, in seconds, of a step with `tokens` prompt tokens."""
        self._token_s.add(seconds / tokens)
        if self._step_s.value:
            # At most double the size: the time per token depends on the chunk size.
            affordable = int(
                self._settings.prefill_stall * self._step_s.value / self._token_s.value
            )
            self._chunk = max(
                min(self._settings.min_chunk_tokens, self._max_tokens),
                min(affordable, 2 * self._chunk, self._max_tokens),
            )
