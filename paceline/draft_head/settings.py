"""Hold the settings of the hidden-state draft head."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    """Limit the trees that a draft head predicts.

    Chosen with SmolLM2-135M and its trained draft head, on CPUs with two cores.

    Attributes:
        num_first: Predicted tokens after the newest token.
        num_later: Predicted tokens after each predicted token that is continued.
        num_continued: Predicted tokens per level that are continued, per request.
        max_levels: Maximum number of tokens ahead.
        max_rows: Rows of a level over all requests. More rows would take longer than reading the
            weights from memory.
    """

    num_first: int = 16
    num_later: int = 8
    num_continued: int = 4
    max_levels: int = 16
    max_rows: int = 8


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Tune the least-squares fit of a draft head that was not trained.

    Chosen with SmolLM2-135M, on CPUs with two cores.

    Attributes:
        num_texts: Texts that the target generates at once.
        text_tokens: Tokens of each text.
        max_cache_bytes: Maximum memory of the KV cache for these texts; at least 8 are generated.
        pairs_per_input: Pairs of a state and the next state, per input of the map.
        max_pairs: Maximum number of pairs.
        min_pairs: Minimum number of pairs; a slower model gets no draft head.
        max_seconds: Seconds after which no forward pass begins.
        ridge: Weight of the ridge: pairs with inputs of average size and the next state 0.
        num_token_ids: Size of the reduced draft vocabulary. The first ids are taken, since most
            tokenizers number their tokens in the order of the merges.
        min_cached_work: Multiply-adds of the texts from which on the fit is cached. A smaller fit
            is repeated in less time than it takes to read it.
    """

    num_texts: int = 64
    text_tokens: int = 64
    max_cache_bytes: int = 1 << 28
    pairs_per_input: int = 16
    max_pairs: int = 16384
    min_pairs: int = 512
    max_seconds: float = 16.0
    ridge: float = 200.0
    num_token_ids: int = 4096
    min_cached_work: int = 1 << 36
