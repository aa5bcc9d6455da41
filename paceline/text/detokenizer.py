"""Decode token ids to text, token by token."""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from paceline.text.settings import MAX_OPEN_TOKENS, WINDOW_TOKENS
from paceline.text.token_bytes import (
    Spelling,
    TokenBytes,
    cleans_up_spaces,
    has_byte_fallback,
    token_bytes,
)

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Text endings that the next token may change: incomplete characters, and "@@", which marks that
# the next token continues the word.
_OPEN = re.compile(rf"(?:{REPLACEMENT}+|@@)$")
# In addition, prefixes of the patterns that `clean_up_tokenization` replaces, such as " n't".
_OPEN_SPACES = re.compile(rf"(?:{REPLACEMENT}+|@@|(?:[ ']|(?<=[ '])[nvr])+)$")


class Decoder(Protocol):
    """A tokenizer whose `decode` method works like that of transformers' tokenizers."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of `token_ids`, omitting special tokens on request."""
        ...


class TokenText(NamedTuple):
    """Text and bytes that one token adds to an answer.

    Attributes:
        text: Characters that the token completes. Empty if the token completes no character.
        data: UTF-8 bytes of the token. They may begin or end in the middle of a character.
        complete: Whether the text ends with a complete character after this token.
    """

    text: str
    data: bytes
    complete: bool = True


_NOTHING = TokenText("", b"")


class Detokenizer:
    """Decodes the tokens of an answer to text, one by one.

    The prompt's text, followed by the texts that `push` and `flush` return, equals the result of
    `tokenizer.decode` for all tokens. If a character spans several tokens, `push` returns the
    character with the last of these tokens. Invalid bytes, and an incomplete character at the end,
    become U+FFFD. With byte fallback, `tokenizer.decode` also corrupts the complete characters
    before such bytes; this class preserves them. The cost per token does not grow with the text.

    Args:
        tokenizer: transformers tokenizer, or any object with the same `decode` method.
        prompt_ids: Tokens before the answer. Empty if the answer begins the text.
        skip_special_tokens: Whether to omit special tokens, such as end of sequence, from the
            text.
    """

    def __init__(
        self, tokenizer: Decoder, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        table = token_bytes(tokenizer)
        self._decoding: _Bytes | _Window = (
            _Window(tokenizer, prompt_ids, skip_special_tokens)
            if table is None
            else _Bytes(table, prompt_ids, skip_special_tokens)
        )
        self.push, self.rest = self._decoding.push, self._decoding.rest

    def flush(self) -> str:
        """Return the remaining text, with U+FFFD for an incomplete character, and reset."""
        rest = self._decoding.rest()
        self._decoding.begin()
        return rest.text

    def spell(self, token: int) -> TokenText:
        """Add a token, and return its bytes and the text that `push` would return.

        The concatenated bytes of all tokens are the UTF-8 encoding of the text.
        """
        return self._decoding.spell(token)

    def peek(self, token: int) -> TokenText:
        """Return the text and bytes that `token` would add if it came next.

        For a hidden special token, the text is its name, such as "<eos>", and the bytes are empty.
        """
        return self._decoding.peek(token)


def text_of(tokenizer: Decoder, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
    """Decode the ids of a complete text, which does not follow a prompt."""
    detokenizer = Detokenizer(tokenizer, (), skip_special_tokens)
    return "".join([*map(detokenizer.push, token_ids), detokenizer.flush()])


class _Bytes:
    """Detokenizer for tokenizers in which each token represents fixed bytes."""

    def __init__(
        self, table: TokenBytes, prompt_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._table, self._skips = table, skip_special_tokens
        self._start = self._after_prompt(prompt_ids)
        self.begin()

    def begin(self) -> None:
        self._first, self._open, self._shown = self._start

    def _after_prompt(self, prompt_ids: Sequence[int]) -> tuple[bool, bytes, bool]:
        """Return the decoder state after a prompt.

        The first value is True if the prompt has no text. In this case, the text starts with the
        answer. The second contains the bytes of an incomplete character at the end of the prompt.
        The third is True if the prompt's text shows U+FFFD for this character.
        """
        first, data = True, b""
        for token in reversed(prompt_ids):
            spelling = self._table[token]
            if spelling.data and not self._hides(spelling):
                first, data = False, spelling.data + data
            if len(data) >= 4:  # the longest character has four bytes
                break
        unfinished = data[utf_8_decode(data, "replace", False)[1] :]
        return first, unfinished, bool(unfinished)

    def push(self, token: int) -> str:
        """Add a token, and return the text that later tokens cannot change, if any."""
        spelling = self._table[token]
        if spelling.text is not None and not (self._open or self._first or spelling.special):
            return spelling.text
        data = self._data(spelling)
        text, self._open, self._shown = self._with(data)
        self._first = self._first and (self._hides(spelling) or not spelling.data)
        return text

    def rest(self) -> TokenText:
        """Return the text that remains if the answer ends here; the result has no bytes."""
        return (
            TokenText(self._open.decode(errors="replace"), b"")
            if self._open and not self._shown
            else _NOTHING
        )

    def spell(self, token: int) -> TokenText:
        data = self._data(self._table[token])
        text = self.push(token)
        return TokenText(text, data, not self._open and not text.endswith(REPLACEMENT))

    def peek(self, token: int) -> TokenText:
        spelling = self._table[token]
        if self._hides(spelling):
            return TokenText(spelling.data.decode(errors="replace"), b"")
        data = self._data(spelling)
        text, unfinished, _ = self._with(data)
        return TokenText(text, data, not unfinished and not text.endswith(REPLACEMENT))

    def _hides(self, spelling: Spelling) -> bool:
        return self._skips and spelling.special

    def _data(self, spelling: Spelling) -> bytes:
        if self._hides(spelling):
            return b""
        return spelling.first if self._first else spelling.data

    def _with(self, data: bytes) -> tuple[str, bytes, bool]:
        """Decode the pending bytes and `data`; return the text and the new decoder state.

        The state has two values: the bytes of the incomplete character at the end, and whether the
        prompt's text already shows U+FFFD for this character.
        """
        pending = self._open + data
        text, used = utf_8_decode(pending, "replace", False)
        if self._shown and used:
            text = text.removeprefix(self._open.decode(errors="replace"))
        return text, pending[used:], self._shown and not used


class _Window:
    """Detokenizer that decodes each new token together with the last few tokens."""

    def __init__(
        self, tokenizer: Decoder, prompt_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._ends_open = _OPEN_SPACES if cleans_up_spaces(tokenizer) else _OPEN
        self._falls_back = has_byte_fallback(tokenizer)
        self._prompt_ids = self._newest(list(prompt_ids))
        self._shown = self._finished(self._prompt_ids, self._decode(self._prompt_ids))
        self.begin()

    def begin(self) -> None:
        self._ids = list(self._prompt_ids)
        # Text of the window, and the prefix that callers have already received.
        self._text = self._released = self._shown

    def push(self, token: int) -> str:
        """Add a token, and return the text that later tokens cannot change, if any."""
        self._ids.append(token)
        self._text = self._decode(self._ids)
        open_end = self._ends_open.search(self._text)
        final = (
            self._text
            if open_end is None or len(self._ids) > MAX_OPEN_TOKENS
            else self._text[: open_end.start()]
        )
        new = ""
        if len(final) > len(self._released) or not self._released.startswith(final):
            new, self._released = self._beyond(final), final
        if len(self._ids) > 2 * WINDOW_TOKENS:
            self._shorten()
        return new

    def rest(self) -> TokenText:
        text = self._finished(self._ids, self._text)
        if self._released.startswith(text):
            return _NOTHING
        rest = self._beyond(text)
        unfinished = len(rest) - len(rest.rstrip(REPLACEMENT))
        if unfinished and self._falls_back:
            num_finished = len(rest) - unfinished
            rest = rest[:num_finished] + (
                REPLACEMENT if num_finished or not self._released.endswith(REPLACEMENT) else ""
            )
        return TokenText(rest, rest.encode())

    def spell(self, token: int) -> TokenText:
        text = self.push(token)
        return TokenText(text, text.encode(), not self._text.endswith(REPLACEMENT))

    def peek(self, token: int) -> TokenText:
        text = self._decode([*self._ids, token])
        if text == self._text:
            return TokenText(self._tokenizer.decode([token], skip_special_tokens=False), b"")
        new = self._beyond(text).rstrip(REPLACEMENT)
        return TokenText(new, new.encode(), not text.endswith(REPLACEMENT))

    def _finished(self, token_ids: list[int], text: str) -> str:
        """Restore complete characters in `text`, the result of decoding `token_ids`.

        Some tokenizers corrupt the complete characters before an incomplete one at the end.
        """
        if not text.endswith(REPLACEMENT):
            return text
        # Leave out the one to three tokens of the unfinished character.
        heads = (self._decode(token_ids[:-count]) for count in range(1, 4))
        head = next((head for head in heads if not head.endswith(REPLACEMENT)), "")
        return text if text.startswith(head) else head + REPLACEMENT

    def _beyond(self, text: str) -> str:
        """Return the part of the window's text that callers have not received yet.

        If a new token has changed earlier text, the part begins at the first changed character.
        """
        if text.startswith(self._released):
            return text[len(self._released) :]
        pairs = zip(text, self._released, strict=False)
        return text[
            next((index for index, (new, old) in enumerate(pairs) if new != old), len(text)) :
        ]

    def _shorten(self) -> None:
        """Drop the oldest tokens, unless this changes text that has yet to be returned."""
        if not self._text.startswith(self._released):
            return
        ids = self._newest(self._ids)
        text, pending = self._decode(ids), self._text[len(self._released) :]
        if text.endswith(pending) and (
            len(text) > len(pending) or len(self._ids) > MAX_OPEN_TOKENS
        ):
            self._ids, self._text, self._released = ids, text, text[: len(text) - len(pending)]

    def _newest(self, token_ids: list[int]) -> list[int]:
        """Return a suffix of the tokens whose text begins with a complete character.

        A first token that begins in the middle of a character would corrupt later characters.
        """
        size = WINDOW_TOKENS
        while size < len(token_ids):
            text = self._decode(token_ids[-size:])
            if text.strip() and (not text.startswith(REPLACEMENT) or size == 2 * WINDOW_TOKENS):
                break
            size += 1 if text.strip() else size
        return token_ids[-size:]

    def _decode(self, token_ids: list[int]) -> str:
        return (
            self._tokenizer.decode(token_ids, skip_special_tokens=self._skips) if token_ids else ""
        )
