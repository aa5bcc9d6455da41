"""From token ids to text: incremental decoding, and stop strings that end inside a run of accepted tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

_REPLACEMENT = "�"


class Decoder(Protocol):
    """The one tokenizer method this module needs; every transformers tokenizer has it."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of `token_ids`."""
        ...


class Detokenizer:
    """Turns a growing list of token ids into text, piece by piece.

    A piece is released once it no longer depends on what follows (no half of a UTF-8 character, no leading-space
    rule of the tokenizer), so the pieces joined are the text of the whole.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._ids: list[int] = []
        self._start = 0  # decode from here: enough context for the tokenizer's spacing rules
        self._done = 0  # tokens before this index have been released

    def push(self, token_id: int) -> str:
        """Add one token; returns the text that became certain (may be empty)."""
        self._ids.append(token_id)
        known = self._decode(self._ids[self._start : self._done])
        text = self._decode(self._ids[self._start :])
        if text.endswith(_REPLACEMENT) or len(text) <= len(known):
            return ""
        self._start, self._done = self._done, len(self._ids)
        return text[len(known) :]

    def flush(self) -> str:
        """The rest, an unfinished character shown as the replacement character."""
        known = self._decode(self._ids[self._start : self._done])
        text = self._decode(self._ids[self._start :])
        self._start = self._done = len(self._ids)
        return text[len(known) :]

    def _decode(self, ids: list[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=True) if ids else ""


class StopStrings:
    """Finds the first of several stop strings in the text of a run of tokens."""

    def __init__(self, stop: Seq[str], decoder: Decoder) -> None:
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
