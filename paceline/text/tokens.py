"""Texts into token ids: the one place that knows what a tokenizer cannot take."""

from __future__ import annotations

from typing import Any

from paceline.errors import ConfigError


def is_text(text: object) -> bool:
    """Whether it is a string that can be written as UTF-8: half a surrogate pair, or a byte that
    was none, cannot.
    """
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_text(where: str, text: str) -> str:
    """Return `text`, if it is one.

    Raises:
        ConfigError: it has a lone surrogate; `where` names it.
    """
    if not is_text(text):
        raise ConfigError(
            f"{where}: got {text[:60]!a}, with half a surrogate pair or bytes that are not UTF-8;"
            " expected text. Write it in UTF-8."
        )
    return text


def text_ids(tokenizer: Any, text: str, where: str) -> list[int]:
    """Return the token ids of a text, special tokens of the tokenizer's included.

    Raises:
        ConfigError: it is no text; `where` names it.
    """
    return [int(token) for token in tokenizer(require_text(where, text))["input_ids"]]


def word_ids(tokenizer: Any, word: str, where: str) -> set[tuple[int, ...]]:
    """Return the ways a word is spelled in tokens: as it begins a text, and as it stands behind a
    space.

    Raises:
        ConfigError: it is no text, or has no tokens; `where` names it.
    """
    bare = require_text(where, word).lstrip()
    ways = {
        tuple(map(int, tokenizer(text, add_special_tokens=False)["input_ids"]))
        for text in (bare, f" {bare}")
    }
    if () in ways:
        raise ConfigError(
            f"{where}: got {word!r}, which has no tokens; expected words of the tokenizer's. Leave"
            " it out."
        )
    return ways
