"""Options of the lookahead drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class LookaheadOptions:
    """Options of `lookahead`.

    Attributes:
        window: W, columns of the window.
        ngram: N, tokens of an n-gram, its key included.
        guesses: G, most n-grams verified per step; 0 = the window's own nodes only.
        pool: n-grams kept per key; none = as many as guesses.
        prompt_pool: put the n-grams of the prompt and of the answer into the pool too ("prompt as
            reference").
        budget: leave the drafts out while they do not pay for their forward.
        compat: take exactly the public code's steps, for comparison.
    """

    window: int = 3
    ngram: int = 3
    guesses: int = 4
    pool: int | None = None
    prompt_pool: bool = True
    budget: bool = True
    compat: bool = False

    def __post_init__(self) -> None:
        require_range("lookahead", "window", self.window, 1)
        require_range("lookahead", "ngram", self.ngram, 2)
        require_range("lookahead", "guesses", self.guesses, 0)
        if self.pool is not None:
            require_range("lookahead", "pool", self.pool, 1)
        if self.compat and self.ngram < 3:
            raise ConfigError(
                f"lookahead: got ngram={self.ngram} with compat=true; expected 3 or more, as the"
                " public code needs. Raise ngram."
            )

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest tree: (N - 1) (W + G) tokens, one of which is the root."""
        return (self.ngram - 1) * (self.window + self.guesses) - 1
