"""Define the options of drafters that consist of a single module.

Importing this module does not import the drafters themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.drafters.shared.settings import MAX_FREQUENT_TOKENS
from paceline.errors import ConfigError
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Options of `none`, the drafter without any options."""


@dataclass(frozen=True, slots=True)
class PromptLookupOptions:
    """Options of `prompt_lookup`, which drafts from earlier matches in the text.

    Attributes:
        max_ngram: Maximum length of the n-gram to look up, in tokens; default 4. The drafter tries
            the longest n-gram first.
        min_ngram: Minimum length of the n-gram to look up, in tokens; at least 1, default 1.
        max_draft_tokens: Maximum number of tokens in a branch; at least 1, default 16.
        max_matches: Maximum number of different continuations, each a branch of the draft tree; at
            least 1, default 8. With max_matches=1, the draft is a chain.
        max_frequent_tokens: Maximum number of the text's most frequent tokens in the tree. Defaults
            to 16, or to 0 if budget=false.
        budget: Verify only the nodes that are expected to save time; default true.
    """

    max_ngram: int = 4
    min_ngram: int = 1
    max_draft_tokens: int = 16
    max_matches: int = 8
    max_frequent_tokens: int | None = None
    budget: bool = True

    def __post_init__(self) -> None:
        require_range("prompt_lookup", "min_ngram", self.min_ngram, 1)
        require_range("prompt_lookup", "max_draft_tokens", self.max_draft_tokens, 1)
        require_range("prompt_lookup", "max_matches", self.max_matches, 1)
        if self.max_frequent_tokens is not None:
            require_range("prompt_lookup", "max_frequent_tokens", self.max_frequent_tokens, 0)
        if self.max_ngram < self.min_ngram:
            raise ConfigError(
                f"prompt_lookup: got max_ngram={self.max_ngram} with min_ngram={self.min_ngram};"
                " expected max_ngram to be at least min_ngram. Raise max_ngram."
            )

    @property
    def frequent_limit(self) -> int:
        """Value of `max_frequent_tokens`, or its default if it is not set."""
        if self.max_frequent_tokens is not None:
            return self.max_frequent_tokens
        return MAX_FREQUENT_TOKENS if self.budget else 0


@dataclass(frozen=True, slots=True)
class JacobiOptions:
    """Options of `jacobi`, which refines guesses in parallel.

    Attributes:
        block: B, number of tokens that the drafter refines in parallel; at least 1. By default,
            the drafter refines the entire rest of the answer in parallel.
    """

    block: int | None = None

    def __post_init__(self) -> None:
        if self.block is not None:
            require_range("jacobi", "block", self.block, 1)
