"""Map token ids to tokens, and compare tokenizers, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.text.settings import MAX_PADDING_ROWS, TOKENS_PER_PADDING_ROW


def is_padded(rows: int, tokens: int) -> bool:
    """Return whether an embedding fits a tokenizer, allowing for padding.

    Args:
        rows: Number of rows in the embedding.
        tokens: Number of tokens in the tokenizer.
    """
    padding = max(min(MAX_PADDING_ROWS, tokens), tokens // TOKENS_PER_PADDING_ROW)
    return tokens <= rows <= tokens + padding


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The vocabulary of a tokenizer.

    Attributes:
        tokens: Tokens by id.
        added: Ids of added tokens, such as special tokens. Related models may name them
            differently.
    """

    tokens: Mapping[int, str]
    added: frozenset[int]


def token_ids_of(tokenizer: Any) -> TokenIds | None:
    """Return the vocabulary of a tokenizer; None if it does not expose one."""
    vocabulary = getattr(tokenizer, "get_vocab", None)
    if vocabulary is None:
        return None
    tokens = {int(number): str(token) for token, number in vocabulary().items()}
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return TokenIds(tokens, frozenset(map(int, added))) if tokens else None


def size(ids: TokenIds) -> int:
    """Return the largest token id plus one."""
    return 1 + max(ids.tokens)


def difference(first: TokenIds, second: TokenIds) -> tuple[str, str] | None:
    """Describe the first token id that has different tokens in two tokenizers.

    Ids that exist in only one tokenizer are ignored. Ids of added tokens are also ignored, because
    added tokens may have different names.

    Args:
        first: Vocabulary of one tokenizer.
        second: Vocabulary of the other tokenizer.
    Returns:
        A phrase with the id and its token in `first`, such as "id 5 is 'a'", and the token in
        `second`. None if no id has different tokens.
    """
    ignored = first.added | second.added
    for number, token in sorted(first.tokens.items()):
        other = second.tokens.get(number, token)
        if other != token and number not in ignored:
            return f"id {number} is {token!r}", f"{other!r}"
    return None
