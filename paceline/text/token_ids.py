"""What a tokenizer's ids mean, and whether two tokenizers agree. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# rows, but no more than tokens; of a vocabulary: 102,400 rows for 100,015 tokens
_MOST_PADDING, _PADDING_SHARE = (1024, 32)


def is_padded(rows: int, tokens: int) -> bool:
    """Whether `rows` rows of an embedding may be those of a tokenizer with `tokens` tokens, and
    padding.
    """
    return tokens <= rows <= tokens + max(min(_MOST_PADDING, tokens), tokens // _PADDING_SHARE)


@dataclass(frozen=True, slots=True)
class TokenIds:
    """What a tokenizer's ids mean.

    Attributes:
        tokens: by id. added: ids of tokens that are not of the model (special ones), which families
            rename.
    """

    tokens: Mapping[int, str]
    added: frozenset[int]


def token_ids_of(tokenizer: Any) -> TokenIds | None:
    """Return what a tokenizer's ids mean; None where it does not show that."""
    vocabulary = getattr(tokenizer, "get_vocab", None)
    if vocabulary is None:
        return None
    tokens = {int(number): str(token) for token, number in vocabulary().items()}
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return TokenIds(tokens, frozenset(map(int, added))) if tokens else None


def size(ids: TokenIds) -> int:
    """Return one more than the largest id."""
    return 1 + max(ids.tokens)


def difference(ours: TokenIds, theirs: TokenIds) -> tuple[str, str] | None:
    """Return what an id means in two tokenizers that are not the same, in words; None where they
    agree.

    Ids that only one of them has, as added tokens behind the other's, are no difference, and
    neither are names of added tokens.
    """
    ignored = ours.added | theirs.added
    for number, token in sorted(ours.tokens.items()):
        other = theirs.tokens.get(number, token)
        if other != token and number not in ignored:
            return f"id {number} is {token!r}", f"{other!r}"
    return None
