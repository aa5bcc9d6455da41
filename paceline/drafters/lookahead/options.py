"""Define and validate the options of the `lookahead` drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class LookaheadOptions:
    """Options of `lookahead`, which drafts n-grams with the target.

    Attributes:
        window: W, number of columns in the lookahead window; at least 1, default 3.
        ngram: N, number of tokens in an n-gram, including its key (the first token);
            at least 2, default 3.
        guesses: G, maximum number of n-grams verified per step; default 4. With guesses=0, the
            target verifies only the nodes of the window.
        ngrams_per_key: Maximum number of n-grams stored per key; at least 1. Defaults to `guesses`.
        prompt_pool: Also store n-grams from the prompt and the answer ("prompt as reference");
            default true.
        budget: Skip drafting while it is slower than plain decoding; default true.
        reference_mode: Reproduce every step of the authors' code exactly, for comparison; default
            false.
    """

    window: int = 3
    ngram: int = 3
    guesses: int = 4
    ngrams_per_key: int | None = None
    prompt_pool: bool = True
    budget: bool = True
    reference_mode: bool = False

    def __post_init__(self) -> None:
        require_range("lookahead", "window", self.window, 1)
        require_range("lookahead", "ngram", self.ngram, 2)
        require_range("lookahead", "guesses", self.guesses, 0)
        if self.ngrams_per_key is not None:
            require_range("lookahead", "ngrams_per_key", self.ngrams_per_key, 1)
        if self.reference_mode and self.ngram < 3:
            raise ConfigError(
                f"lookahead: got ngram={self.ngram} with reference_mode=true; expected 3 or more,"
                " as the public code needs. Raise ngram."
            )

    @property
    def max_nodes(self) -> int:
        """Maximum number of nodes in a draft tree: (N - 1) (W + G) - 1.

        The root is not counted.
        """
        return (self.ngram - 1) * (self.window + self.guesses) - 1
