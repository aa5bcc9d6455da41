"""From token ids to text, token by token."""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from paceline.text.token_bytes import Spelling, TokenBytes, cleans_up, falls_back, token_bytes

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_WINDOW = (
    8  # tokens before a token that its text may depend on, where the tokenizer has no spellings
)
_MOST_OPEN = 8 * _WINDOW  # tokens whose text stays open at most
# Ends of texts that the next token may change: parts of characters, and "@@", which joins it to its
# word.
_OPEN = re.compile(rf"(?:{REPLACEMENT}+|@@)$")
# The same, and what may become a part of the patterns that `clean_up_tokenization` replaces, such
# as " n't".
_OPEN_SPACES = re.compile(rf"(?:{REPLACEMENT}+|@@|(?:[ ']|(?<=[ '])[nvr])+)$")


class Decoder(Protocol):
    """The one tokenizer method this module needs; every transformers tokenizer has it."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of `token_ids`."""
        ...


class TokenText(NamedTuple):
    """What one token adds to a text. Attributes:

    text: the characters that it finishes. data: its bytes. whole: it ends with a finished
    character.
    """

    text: str
    data: bytes
    whole: bool = True


_NOTHING = TokenText("", b"")


class Detokenizer:
    """Turns the tokens of an answer into text, one after another.

    The texts that `push` and `flush` return, joined, continue the prompt's text: both together are
    the text of all tokens, as `tokenizer.decode` gives it. A character of several tokens comes with
    its last one. An unfinished character at the end, and bytes that are no character, become
    U+FFFD; finished characters before them stay, other than in `tokenizer.decode` of tokenizers
    that fall back to bytes. The cost of a token does not depend on the length of the text.

    Args:
        tokenizer: of transformers, or any object with its `decode`.
        prompt_ids: the tokens before the answer; none = the answer begins the text.
        skip_special_tokens: special tokens, such as end of sequence, have no text.
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
        """Return the rest, an unfinished character as U+FFFD, and begin anew behind the prompt."""
        rest = self._decoding.rest()
        self._decoding.begin()
        return rest.text

    def spell(self, token: int) -> TokenText:
        """Add one token; return its text, as `push`, and its bytes. All bytes joined are the
        text in UTF-8.
        """
        return self._decoding.spell(token)

    def peek(self, token: int) -> TokenText:
        """Return what `token` would add if it came next; one that is hidden has its name as
        text, and no bytes.
        """
        return self._decoding.peek(token)


def text_of(tokenizer: Decoder, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
    """Return the text of tokens that begin a text."""
    detokenizer = Detokenizer(tokenizer, (), skip_special_tokens)
    return "".join([*map(detokenizer.push, token_ids), detokenizer.flush()])


class _Bytes:
    """Decodes by the bytes of single tokens."""

    def __init__(
        self, table: TokenBytes, prompt_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._table, self._skips = table, skip_special_tokens
        self._start = self._behind(prompt_ids)
        self.begin()

    def begin(self) -> None:
        self._first, self._open, self._shown = self._start

    def _behind(self, prompt_ids: Sequence[int]) -> tuple[bool, bytes, bool]:
        """Whether no text comes before the answer; the prompt's unfinished character; whether
        there is one, shown as U+FFFD.
        """
        first, data = True, b""
        for token in reversed(prompt_ids):
            spelling = self._table[token]
            if spelling.data and not self._hides(spelling):
                first, data = False, spelling.data + data
            if len(data) >= 4:  # bytes of the longest character
                break
        unfinished = data[utf_8_decode(data, "replace", False)[1] :]
        return first, unfinished, bool(unfinished)

    def push(self, token: int) -> str:
        """Add one token; return the text that became certain (may be empty)."""
        spelling = self._table[token]
        if spelling.text is not None and not (self._open or self._first or spelling.special):
            return spelling.text
        data = self._data(spelling)
        text, self._open, self._shown = self._with(data)
        self._first = self._first and (self._hides(spelling) or not spelling.data)
        return text

    def rest(self) -> TokenText:
        """Return what would end the text here; its bytes are those that no token has had yet."""
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
        """The characters that `data` finishes, the bytes then open, and whether the prompt's
        text shows these already.
        """
        every = self._open + data
        text, used = utf_8_decode(every, "replace", False)
        if self._shown and used:
            text = text.removeprefix(self._open.decode(errors="replace"))
        return text, every[used:], self._shown and not used


class _Window:
    """Decodes the newest tokens together, again for each, with a few before them."""

    def __init__(
        self, tokenizer: Decoder, prompt_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._ends_open = _OPEN_SPACES if cleans_up(tokenizer) else _OPEN
        self._falls_back = falls_back(tokenizer)
        self._prompt_ids = self._newest(list(prompt_ids))
        self._shown = self._finished(self._prompt_ids, self._decode(self._prompt_ids))
        self.begin()

    def begin(self) -> None:
        self._ids = list(self._prompt_ids)
        self._text = self._released = self._shown  # of the window, and as far as it was returned

    def push(self, token: int) -> str:
        """Add one token; return the text that became certain (may be empty)."""
        self._ids.append(token)
        self._text = self._decode(self._ids)
        found = self._ends_open.search(self._text)
        certain = (
            self._text
            if found is None or len(self._ids) > _MOST_OPEN
            else self._text[: found.start()]
        )
        new = ""
        if len(certain) > len(self._released) or not self._released.startswith(certain):
            new, self._released = self._beyond(certain), certain
        if len(self._ids) > 2 * _WINDOW:
            self._shorten()
        return new

    def rest(self) -> TokenText:
        text = self._finished(self._ids, self._text)
        if self._released.startswith(text):
            return _NOTHING
        rest = self._beyond(text)
        unfinished = len(rest) - len(rest.rstrip(REPLACEMENT))
        if unfinished and self._falls_back:
            kept = len(rest) - unfinished
            rest = rest[:kept] + (
                REPLACEMENT if kept or not self._released.endswith(REPLACEMENT) else ""
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
        """The text of some tokens, without the harm that an unfinished character may do to those
        before it.
        """
        if not text.endswith(REPLACEMENT):
            return text
        # without its one to three bytes
        heads = (self._decode(token_ids[:-count]) for count in range(1, 4))
        head = next((head for head in heads if not head.endswith(REPLACEMENT)), "")
        return text if text.startswith(head) else head + REPLACEMENT

    def _beyond(self, text: str) -> str:
        """What a text of the window has beyond the text that was returned, which it may no
        longer begin with.
        """
        if text.startswith(self._released):
            return text[len(self._released) :]
        pairs = zip(text, self._released, strict=False)
        return text[
            next((place for place, (one, other) in enumerate(pairs) if one != other), len(text)) :
        ]

    def _shorten(self) -> None:
        """Leave out old tokens, where the text of the others shows what of it was returned."""
        if not self._text.startswith(self._released):
            return
        ids = self._newest(self._ids)
        text, pending = self._decode(ids), self._text[len(self._released) :]
        if text.endswith(pending) and (len(text) > len(pending) or len(self._ids) > _MOST_OPEN):
            self._ids, self._text, self._released = ids, text, text[: len(text) - len(pending)]

    def _newest(self, token_ids: list[int]) -> list[int]:
        """The newest tokens with some text, which does not begin within a character: that would
        spoil others.
        """
        size = _WINDOW
        while size < len(token_ids):
            text = self._decode(token_ids[-size:])
            if text.strip() and (not text.startswith(REPLACEMENT) or size == 2 * _WINDOW):
                break
            size += 1 if text.strip() else size
        return token_ids[-size:]

    def _decode(self, token_ids: list[int]) -> str:
        return (
            self._tokenizer.decode(token_ids, skip_special_tokens=self._skips) if token_ids else ""
        )
