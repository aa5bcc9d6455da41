"""Encode text as token ids, and reject text that is not valid Unicode."""

from __future__ import annotations

from typing import Any

from paceline.errors import ConfigError
from paceline.util.unicode import require_text


def text_ids(tokenizer: Any, text: str, where: str) -> list[int]:
    """Encode a text, including the special tokens that the tokenizer adds.

    Args:
        tokenizer: Tokenizer of the model.
        text: Text to encode.
        where: Name of the text in error messages.
    Raises:
        ConfigError: The text contains a lone surrogate.
    """
    return [int(token) for token in tokenizer(require_text(where, text))["input_ids"]]


def word_ids(tokenizer: Any, word: str, where: str) -> set[tuple[int, ...]]:
    """Encode a word, without special tokens, at the start of a text and after a space.

    Args:
        tokenizer: Tokenizer of the model.
        word: Word to encode.
        where: Name of the word in error messages.
    Raises:
        ConfigError: The word contains a lone surrogate, or the tokenizer returns no tokens for it.
    """
    bare = require_text(where, word).lstrip()
    ways = {
        tuple(map(int, tokenizer(text, add_special_tokens=False)["input_ids"]))
        for text in (bare, f" {bare}")
    }
    if () in ways:
        raise ConfigError(
            f"{where}: got {word!r}, which has no tokens; expected words that the tokenizer can"
            " encode. Leave it out."
        )
    return ways
