"""Find the bytes that each token in a vocabulary adds to a text."""

from __future__ import annotations

import json
import re
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers.pre_tokenizers import ByteLevel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a token that a ByteFallback decoder maps to a byte
# Decoders that treat only the first token of a text differently from the others.
_LOCAL = re.compile(r"(Replace )*(ByteFallback )?((Fuse )?|Fuse Strip |Metaspace )|WordPiece ")
_tables: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, TokenBytes | None] = (
    weakref.WeakKeyDictionary()
)


class Spelling(NamedTuple):
    """The bytes that a token adds to a text, at the start of the text and elsewhere.

    Attributes:
        data: UTF-8 bytes that the token adds if another token precedes it.
        first: UTF-8 bytes that the token adds at the start of a text.
        text: `data` decoded as text. None if `data` begins or ends in the middle of a character.
        special: Whether `skip_special_tokens` hides the token.
    """

    data: bytes
    first: bytes
    text: str | None
    special: bool


class TokenBytes(dict[int, Spelling]):
    """Maps token ids to spellings, and computes each `Spelling` on first access.

    An id outside the vocabulary has an empty spelling.

    Args:
        backend: Tokenizer from the tokenizers library.
        before: Token placed before another token to compute that token's spelling, because the
            first token of a text is decoded differently. None for byte-level tokenizers, in which
            spellings do not depend on the position.
    """

    def __init__(self, backend: Any, before: int | None) -> None:
        super().__init__()
        self._backend, self.before = backend, before
        self._falls_back = "ByteFallback" in _steps(backend)

    def __missing__(self, token: int) -> Spelling:
        name = self._backend.id_to_token(token)
        if name is None:
            data = first = b""
        elif self.before is None:
            data = first = _byte_level(name)
        else:
            data, first = self._spelled(token, name)
        hidden = bool(data) and not self._after_text(token, skip_special_tokens=True)
        spelling = self[token] = Spelling(data, first, _decoded(data), hidden)
        return spelling

    def _spelled(self, token: int, name: str) -> tuple[bytes, bytes]:
        byte = _BYTE.fullmatch(name)
        if byte is not None and self._falls_back:
            data = bytes([int(byte[1], 16)])
            return data, data if data[0] >= 0x80 else self._decode([token]).encode()
        return self._after_text(token).encode(), self._decode([token]).encode()

    def _after_text(self, token: int, skip_special_tokens: bool = False) -> str:
        before = [] if self.before is None else [self.before]
        start = self._decode(before, skip_special_tokens) if before else ""
        return self._decode([*before, token], skip_special_tokens)[len(start) :]

    def _decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return str(self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens))


def token_bytes(tokenizer: Any) -> TokenBytes | None:
    """Return the spelling of every token, or None if tokens have no fixed spelling.

    In some tokenizers, a token may change the text of the tokens before it. Such tokens have no
    fixed spelling.
    """
    # The import takes a second, and the command-line help does not need it.
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast) or cleans_up_spaces(tokenizer):
        return None
    if tokenizer not in _tables:
        _tables[tokenizer] = _table(tokenizer)
    return _tables[tokenizer]


def context_token_ids(tokenizer: Any) -> list[int]:
    """Return placeholder token ids that precede a text whose real context is unknown.

    Without them, `Detokenizer` would decode the first token as the start of a text. The list is
    empty if every token has the same spelling in all positions.
    """
    table = token_bytes(tokenizer)
    return [] if table is None or table.before is None else [table.before]


def cleans_up_spaces(tokenizer: Any) -> bool:
    """Return whether `tokenizer.decode` removes spaces before punctuation.

    transformers ignores `clean_up_tokenization_spaces` for BPE tokenizers by default.
    """
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    return type(model).__name__ != "BPE" or bool(getattr(tokenizer, forced, True))


def has_byte_fallback(tokenizer: Any) -> bool:
    """Return whether a tokenizer encodes unknown characters byte by byte."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteFallback" in _steps(backend)


def _table(tokenizer: PreTrainedTokenizerFast) -> TokenBytes | None:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    kind = type(tokenizer)
    if (
        kind._decode is not PreTrainedTokenizerFast._decode
        or kind.decode is not PreTrainedTokenizerBase.decode
    ):
        return None  # the tokenizer's class overrides the decoding
    backend = tokenizer.backend_tokenizer
    steps = _steps(backend)
    if steps in ("ByteLevel ", "ByteLevel Fuse "):
        return TokenBytes(backend, None)
    before = next(
        filter(lambda token: _stands_alone(backend, token), range(backend.get_vocab_size())), None
    )
    return (
        TokenBytes(backend, before)
        if before is not None and steps and _LOCAL.fullmatch(steps)
        else None
    )


def _steps(backend: Any) -> str:
    """Return the types of a tokenizer's decoders in order, such as "Replace Fuse ".

    A space follows each type. The result is empty if the tokenizer has no decoder or a decoder
    written in Python. It is also empty if a decoder strips text that may span several tokens.
    """
    if backend.decoder is None:
        return ""
    try:
        state = json.loads(backend.decoder.__getstate__())
    except (TypeError, ValueError):  # a decoder written in Python
        return ""
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    if any(step["type"] == "Strip" and (step["start"] > 1 or step["stop"]) for step in steps):
        return ""  # the stripped text may span several tokens
    return "".join(f"{step['type']} " for step in steps)


def _stands_alone(backend: Any, token: int) -> bool:
    text = backend.decode([token], skip_special_tokens=True)
    return bool(text.strip()) and "\N{REPLACEMENT CHARACTER}" not in text


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _byte_level(name: str) -> bytes:
    values = [_byte_of().get(char) for char in name]
    return (
        name.encode() if None in values else bytes(value for value in values if value is not None)
    )


@cache
def _byte_of() -> dict[str, int]:
    """Map each character of a byte-level vocabulary to the byte that it represents.

    Printable Latin-1 characters represent themselves. Characters from U+0100 represent the other
    bytes.
    """
    alphabet = sorted(ByteLevel.alphabet(), key=ord)
    seen = {char: ord(char) for char in alphabet if ord(char) < 256}
    others = (byte for byte in range(256) if byte not in seen.values())
    return seen | dict(zip((char for char in alphabet if ord(char) >= 256), others, strict=True))
