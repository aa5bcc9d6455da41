"""Find the bytes that each token of a tokenizer adds to a text."""

from __future__ import annotations

import json
import re
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers.pre_tokenizers import ByteLevel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # spelling of a byte for ByteFallback decoders
# Decoders for which a token's text depends on its position only if it is the first token.
_LOCAL = re.compile(r"(Replace )*(ByteFallback )?((Fuse )?|Fuse Strip |Metaspace )|WordPiece ")
_tables: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, TokenBytes | None] = (
    weakref.WeakKeyDictionary()
)


class Spelling(NamedTuple):
    """The bytes and the text that a token adds to a text.

    Attributes:
        data: Bytes of the token if another token precedes it.
        first: Bytes of the token at the start of a text.
        text: `data` as text; None if it begins or ends in the middle of a character.
        special: Whether `skip_special_tokens` hides the token.
    """

    data: bytes
    first: bytes
    text: str | None
    special: bool


class TokenBytes(dict[int, Spelling]):
    """Maps token ids to spellings (`Spelling`), computed on demand.

    The spelling of an unknown id is empty.

    Args:
        backend: Tokenizer of the tokenizers library.
        before: Token after which other tokens are decoded to find their spelling; None for
            byte-level tokenizers, in which spellings do not depend on context.
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
    """Return the bytes and the text (`Spelling`) of each of a tokenizer's tokens.

    Return None if they are unknown, or if a token may change the text before it.
    """
    # The import takes a second, which the help of commands does not need.
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast) or cleans_up_spaces(tokenizer):
        return None
    if tokenizer not in _tables:
        _tables[tokenizer] = _table(tokenizer)
    return _tables[tokenizer]


def context_token_ids(tokenizer: Any) -> list[int]:
    """Return token ids to decode before a text whose real context is unknown.

    The list is empty if the spelling of every token is the same in all positions.
    """
    table = token_bytes(tokenizer)
    return [] if table is None or table.before is None else [table.before]


def cleans_up_spaces(tokenizer: Any) -> bool:
    """Return whether `tokenizer.decode` removes spaces before punctuation.

    transformers ignores this setting for BPE tokenizers.
    """
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    return type(model).__name__ != "BPE" or bool(getattr(tokenizer, forced, True))


def has_byte_fallback(tokenizer: Any) -> bool:
    """Return whether a tokenizer spells unknown characters byte by byte."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteFallback" in _steps(backend)


def _table(tokenizer: PreTrainedTokenizerFast) -> TokenBytes | None:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    kind = type(tokenizer)
    if (
        kind._decode is not PreTrainedTokenizerFast._decode
        or kind.decode is not PreTrainedTokenizerBase.decode
    ):
        return None  # the tokenizer decodes with code of its model
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
    """Return a string with the kind of each decoder in a tokenizer, in order.

    A space follows each kind. Return "" if there is no decoder, if the decoders cannot be read, or
    if the text that a decoder strips depends on several tokens.
    """
    if backend.decoder is None:
        return ""
    try:
        state = json.loads(backend.decoder.__getstate__())
    except (TypeError, ValueError):  # a decoder written in Python
        return ""
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    if any(step["type"] == "Strip" and (step["start"] > 1 or step["stop"]) for step in steps):
        return ""  # the stripped text depends on several tokens
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
    """Map each character of byte-level tokens to its byte.

    A printable character represents itself. Characters from 256 onwards represent the other bytes.
    """
    alphabet = sorted(ByteLevel.alphabet(), key=ord)
    seen = {char: ord(char) for char in alphabet if ord(char) < 256}
    others = (byte for byte in range(256) if byte not in seen.values())
    return seen | dict(zip((char for char in alphabet if ord(char) >= 256), others, strict=True))
