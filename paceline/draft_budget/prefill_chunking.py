"""Limit prefill chunks so that a long prompt does not stall other streams."""

from __future__ import annotations

from paceline.draft_budget.settings import DEFAULTS, DraftBudgetSettings


class PrefillChunkController:
    """Choose prefill chunk sizes from the measured speed of forward passes.

    Args:
        max_tokens: largest chunk, in tokens.
        settings: stall limit and chunk sizes.
    """

    def __init__(self, max_tokens: int, settings: DraftBudgetSettings = DEFAULTS) -> None:
        self._settings = settings
        self._max_tokens = max_tokens
        self._chunk = min(settings.first_chunk_tokens, max_tokens)
        self._decode = 0.0  # seconds of a decode step
        self._token = 0.0  # seconds per prompt token in recent forward passes

    @property
    def chunk(self) -> int:
        """Prompt tokens that the next forward pass may take, in all requests."""
        return self._chunk

    def note_decode(self, seconds: float) -> None:
        """Record the seconds of a step without prompts."""
        self._decode = (
            seconds
            if not self._decode
            else self._decode + self._settings.prefill_rate * (seconds - self._decode)
        )

    def note_prompts(self, tokens: int, seconds: float) -> None:
        """Record the seconds of a step with `tokens` prompt tokens."""
        each = seconds / tokens
        self._token = (
            each
            if not self._token
            else self._token + self._settings.prefill_rate * (each - self._token)
        )
        if self._decode:
            # Double at most: the time per token depends on the size of the chunk.
            affordable = int(self._settings.prefill_stall * self._decode / self._token)
            self._chunk = max(
                min(self._settings.min_chunk_tokens, self._max_tokens),
                min(affordable, 2 * self._chunk, self._max_tokens),
            )
