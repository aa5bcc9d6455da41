"""Options of the drafters that are a single file, without what those import."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range

_FREQUENT = 16  # tokens: about as many rows as cost little more than one


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Options of `none`: there are none."""


@dataclass(frozen=True, slots=True)
class PromptLookupOptions:
    """Options of `prompt_lookup`.

    Attributes:
        max_ngram: tokens of the longest n-gram looked up, which is tried first.
        min_ngram: tokens of the shortest n-gram looked up.
        length: most tokens proposed in a row.
        matches: most different continuations proposed, as branches of a tree; 1 = a chain.
        frequent: most tokens proposed beside them because they are the text's most frequent ones.
            Not given: 16 with the budget, else 0.
        budget: of these, the engine feeds what pays for its forward.
    """

    max_ngram: int = 4
    min_ngram: int = 1
    length: int = 16
    matches: int = 8
    frequent: int | None = None
    budget: bool = True

    def __post_init__(self) -> None:
        require_range("prompt_lookup", "min_ngram", self.min_ngram, 1)
        require_range("prompt_lookup", "length", self.length, 1)
        require_range("prompt_lookup", "matches", self.matches, 1)
        if self.frequent is not None:
            require_range("prompt_lookup", "frequent", self.frequent, 0)
        if self.max_ngram < self.min_ngram:
            raise ConfigError(
                f"prompt_lookup: got max_ngram={self.max_ngram} with min_ngram={self.min_ngram};"
                " expected max_ngram not to be"
                " smaller. Raise it."
            )

    @property
    def most_frequent(self) -> int:
        """Most of the text's most frequent tokens that are proposed."""
        if self.frequent is not None:
            return self.frequent
        return _FREQUENT if self.budget else 0


@dataclass(frozen=True, slots=True)
class JacobiOptions:
    """Options of `jacobi`.

    Attributes:
        block: B, tokens solved together. Not given: the whole rest of the answer.
    """

    block: int | None = None

    def __post_init__(self) -> None:
        if self.block is not None:
            require_range("jacobi", "block", self.block, 1)
