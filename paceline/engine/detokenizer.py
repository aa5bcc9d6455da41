"""From token ids to text, token by token."""

from __future__ import annotations

from typing import Any

from tokenizers.decoders import DecodeStream

from paceline.engine.text import Decoder

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns a growing list of token ids into text, piece by piece.

    A piece is released once it no longer depends on what follows (no half of a UTF-8 character, no leading-space
    rule of the tokenizer), so the pieces joined are the text of the whole.

    Tokenizers of the tokenizers library stream by themselves (`DecodeStream`); of others the whole text is decoded per token.
    """

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        cleans = getattr(tokenizer, "clean_up_tokenization_spaces", False)  # it changes text that was released before
        self._backend: Any = None if cleans else getattr(tokenizer, "backend_tokenizer", None)
        self._begin()

    def push(self, token_id: int) -> str:
        """Add one token; return the text that became certain (may be empty)."""
        self._ids.append(token_id)
        piece = self._streamed(token_id) if self._backend is not None else self._decoded()
        self._released += len(piece)
        return piece

    def flush(self) -> str:
        """Return the rest, an unfinished character shown as the replacement character, and begin anew."""
        rest = self._text()[self._released :]
        self._begin()
        return rest

    def _begin(self) -> None:
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._released = 0  # characters

    def _streamed(self, token_id: int) -> str:
        try:
            return self._stream.step(self._backend, token_id) or ""
        except Exception:  # tokenizers raises no type of its own where a text is no continuation of the one before
            self._backend = None
            return self._decoded()

    def _decoded(self) -> str:
        text = self._text()
        return "" if text.endswith(_REPLACEMENT) else text[self._released :]

    def _text(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=True) if self._ids else ""
