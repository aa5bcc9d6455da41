"""Stop strings: where they end inside a run of accepted tokens, and which text they cut off."""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from typing import Protocol


class Decoder(Protocol):
    """The one tokenizer method this module needs; every transformers tokenizer has it."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of `token_ids`."""
        ...


class StopStrings:
    """Finds the first of several stop strings in the text of a run of tokens."""

    def __init__(self, stop: ListLike[str], decoder: Decoder) -> None:
        self._stop = tuple(stop)
        self._decoder = decoder
        # A token carries at least one byte of text, but for special ones: a few spare tokens cover those.
        self._window = max(len(text.encode()) for text in stop) + 8

    def ends(self, token_ids: list[int]) -> bool:
        """Whether a stop string ends within the newest token of `token_ids` (output tokens only)."""
        text = self._decoder.decode(token_ids[-self._window :], skip_special_tokens=True)
        return any(stop in text for stop in self._stop)

    def cut(self, text: str) -> str:
        """`text` up to the earliest stop string, which is not part of the answer."""
        found = [place for place in (text.find(stop) for stop in self._stop) if place >= 0]
        return text[: min(found)] if found else text

    def held_back(self, text: str) -> int:
        """How many trailing characters of `text` could be the beginning of a stop string."""
        longest = max(len(stop) for stop in self._stop) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop):
                return size
        return 0
