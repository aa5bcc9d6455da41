"""The text of a stream: per token, nothing of a stop string, nothing that could still change."""

from __future__ import annotations

from typing import Any

from paceline.engine.detokenizer import Detokenizer
from paceline.engine.text import StopStrings


class Writer:
    """Turns the tokens of a stream into text.

    Args:
        tokenizer: None = there is no text.
    """

    def __init__(self, tokenizer: Any, stop: StopStrings | None) -> None:
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer)
        self._stop = stop
        self._held: list[tuple[str, bool]] = []  # pieces that may be part of a stop string

    def write(self, token_ids: list[int], accepted: list[bool], last: bool) -> list[tuple[str, bool]]:
        """Pieces (text, accepted) that are certain now."""
        if self._detokenizer is None:
            return []
        pieces = self._held
        for token, flag in zip(token_ids, accepted, strict=True):
            pieces.append((self._detokenizer.push(token), flag))
        if last:
            pieces.append((self._detokenizer.flush(), False))
        pieces = [(text, flag) for text, flag in pieces if text]
        if self._stop is None:
            self._held = []
            return pieces
        text = "".join(piece for piece, _ in pieces)
        certain = len(self._stop.cut(text)) if last else len(text) - self._stop.held_back(text)
        ready, self._held = _split(pieces, certain)
        return ready


def _split(pieces: list[tuple[str, bool]], length: int) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Cut a list of pieces after `length` characters."""
    head, tail = [], []
    for text, flag in pieces:
        if length > 0:
            head.append((text[:length], flag))
        if text[max(0, length) :]:
            tail.append((text[max(0, length) :], flag))
        length -= len(text)
    return head, tail
