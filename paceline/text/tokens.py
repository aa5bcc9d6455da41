"""Encode valid text as token ids."""

from __future__ import annotations

from typing import Any

from paceline.errors import ConfigError
from paceline.util.unicode import require_text


def text_ids(tokenizer: Any, text: str, where: str) -> list[int]:
    """Return the token ids of a text, with the tokenizer's special tokens.

    Args:
        tokenizer: The tokenizer.
        text: The text.
        where: Name of the text in errors.
    Raises:
        ConfigError: The text has a lone surrogate.
    """
    return [int(token) for token in tokenizer(require_text(where, text))["input_ids"]]


def word_ids(tokenizer: Any, word: str, where: str) -> set[tuple[int, ...]]:
    """Return the token sequences of a word: at the start of a text and after a space.

    Args:
        tokenizer: The tokenizer.
        word: The word.
        where: Name of the word in errors.
    Raises:
        ConfigError: The word has a lone surrogate, or no tokens.
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
