"""Read the vocabularies of tokenizers, and compare them, without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.text.settings import MAX_PADDING_ROWS, TOKENS_PER_PADDING_ROW


def is_padded(rows: int, tokens: int) -> bool:
    """Return whether an embedding has a row for every token and only a few extra rows.

    Args:
        rows: Number of rows in the embedding.
        tokens: Number of tokens in the tokenizer's vocabulary.
    """
    padding = max(min(MAX_PADDING_ROWS, tokens), tokens // TOKENS_PER_PADDING_ROW)
    return tokens <= rows <= tokens + padding


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The vocabulary of a tokenizer.

    Attributes:
        tokens: Token for each token id.
        added: Ids of added tokens, such as special tokens. Related models may use different names
            for the same added token.
    """

    tokens: Mapping[int, str]
    added: frozenset[int]


def token_ids_of(tokenizer: Any) -> TokenIds | None:
    """Return a tokenizer's vocabulary, or None if the tokenizer does not expose it."""
    vocabulary = getattr(tokenizer, "get_vocab", None)
    if vocabulary is None:
        return None
    tokens = {int(number): str(token) for token, number in vocabulary().items()}
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return TokenIds(tokens, frozenset(map(int, added))) if tokens else None


def size(ids: TokenIds) -> int:
    """Return the number of ids from 0 to the largest token id."""
    return 1 + max(ids.tokens)


def difference(first: TokenIds, second: TokenIds) -> tuple[str, str] | None:
    """Describe the lowest token id that represents different tokens in two tokenizers.

    The comparison ignores ids that exist in only one tokenizer. It also ignores added tokens,
    which may have different names in related models.

    Args:
        first: Vocabulary of one tokenizer.
        second: Vocabulary of the other tokenizer.
    Returns:
        Two phrases for an error message: the id with its token in `first`, such as "id 5 is 'a'",
        and the token in `second`, such as "'b'". None if no id differs.
    """
    ignored = first.added | second.added
    for number, token in sorted(first.tokens.items()):
        other = second.tokens.get(number, token)
        if other != token and number not in ignored:
            return f"id {number} is {token!r}", f"{other!r}"
    return None
