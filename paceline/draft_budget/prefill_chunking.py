"""How much of a prompt is fed at once while somebody reads along: nobody's stream stands still
for another's long prompt.
"""

from __future__ import annotations

_STALL = (
    1.25  # a prompt's forward takes at most so many decode steps, between two of which it comes
)
_FIRST, _LEAST = 16, 8  # tokens
_RATE = 0.3  # of the newest measurement in what is believed


class PrefillChunkController:
    """Learns what forwards take while they are made.

    Args:
        most: tokens.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._chunk = min(_FIRST, most)
        self._decode = 0.0  # seconds of a decode step
        self._token = 0.0  # seconds of a prompt's token in forwards like the last ones

    @property
    def chunk(self) -> int:
        """Tokens of all prompts that the next forward may take."""
        return self._chunk

    def note_decode(self, seconds: float) -> None:
        """Take in a step without prompts."""
        self._decode = (
            seconds if not self._decode else self._decode + _RATE * (seconds - self._decode)
        )

    def note_prompts(self, tokens: int, seconds: float) -> None:
        """Take in a step that fed so many tokens of prompts."""
        each = seconds / tokens
        self._token = each if not self._token else self._token + _RATE * (each - self._token)
        if self._decode:
            # By twice at most: what a token takes depends on how many there are.
            affordable = int(_STALL * self._decode / self._token)
            self._chunk = max(min(_LEAST, self._most), min(affordable, 2 * self._chunk, self._most))
