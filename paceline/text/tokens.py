"""Encode text as token ids, rejecting invalid text."""

from __future__ import annotations

from typing import Any

from paceline.errors import ConfigError
from paceline.util.unicode import require_text


def text_ids(tokenizer: Any, text: str, where: str) -> list[int]:
    """Return the token ids of a text, with the tokenizer's special tokens.

    Args:
        tokenizer: Tokenizer to use.
        text: Text to encode.
        where: Name of the text in error messages.
    Raises:
        ConfigError: The text contains a lone surrogate.
    """
    return [int(token) for token in tokenizer(require_text(where, text))["input_ids"]]


def word_ids(tokenizer: Any, word: str, where: str) -> set[tuple[int, ...]]:
    """Return a word's token sequences at the start of a text and after a space.

    Args:
        tokenizer: Tokenizer to use.
        word: Word to encode.
        where: Name of the word in error messages.
    Raises:
        ConfigError: The word contains a lone surrogate or has no tokens.
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
