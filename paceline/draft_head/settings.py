"""Hold the settings for the hidden-state draft head."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    """Limits on the trees that a draft head predicts.

    The defaults were chosen with SmolLM2-135M and its trained draft head, on CPUs with two cores.

    Attributes:
        num_first: Number of tokens predicted after the newest token.
        num_later: Number of tokens predicted after each token that is continued.
        num_continued: Number of tokens that are continued, per level and request.
        max_levels: Maximum number of tokens to predict ahead.
        max_rows: Maximum number of rows in a level over all requests. Computing more rows would
            take longer than reading the weights from memory.
    """

    num_first: int = 16
    num_later: int = 8
    num_continued: int = 4
    max_levels: int = 16
    max_rows: int = 8


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Settings for fitting a draft head by least squares instead of training it.

    The defaults were chosen with SmolLM2-135M, on CPUs with two cores.

    Attributes:
        num_texts: Number of texts that the target generates at once.
        text_tokens: Number of tokens in each text.
        max_cache_bytes: Maximum memory for the KV cache of these texts, in bytes; at least 8 texts
            are generated regardless.
        pairs_per_input: Number of (hidden state, next hidden state) pairs per input dimension.
        max_pairs: Maximum number of pairs.
        min_pairs: Minimum number of pairs; a model too slow to produce them gets no draft head.
        max_seconds: Number of seconds after which no new forward pass starts.
        ridge: Weight of the ridge penalty, as an equivalent number of additional pairs. The inputs
            of these pairs have average size, and the next state is 0.
        num_token_ids: Size of the reduced draft vocabulary. The lowest ids are used, because most
            tokenizers number their tokens in merge order.
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
