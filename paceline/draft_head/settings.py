"""Define the settings for predicting with a draft head and for fitting one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    """Limits on the size of the draft trees that a draft head predicts.

    The defaults were chosen with SmolLM2-135M and its trained draft head, on CPUs with two cores.

    Attributes:
        num_first: Number of nodes in the first level, which are alternatives for the next token.
        num_later: Number of children of each node that is extended.
        num_continued: Number of nodes to extend per level and request. The most likely nodes are
            extended.
        max_levels: Maximum depth of a draft tree, in tokens.
        max_rows: Maximum number of nodes to extend per level, over all requests. Computing more
            rows would take longer than reading the weights from memory.
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
        max_cache_bytes: Maximum size of the KV cache for these texts, in bytes. The target
            generates at least 8 texts, even if they exceed this size.
        pairs_per_input: Number of (hidden state, next hidden state) pairs per input dimension of
            the regression.
        max_pairs: Maximum number of pairs.
        min_pairs: Minimum number of pairs. If a model is too slow to generate them, no draft head
            is fitted.
        max_seconds: Time limit in seconds, after which no new forward pass starts.
        ridge: Strength of the ridge penalty, which keeps the weights small. The penalty has the
            effect of this number of additional pairs per input dimension. In such a pair, the
            dimension has its average size; all other dimensions and the next state are 0.
        num_token_ids: Size of the reduced draft vocabulary, which consists of the lowest ids. Most
            tokenizers number their tokens in merge order, so low ids are frequent tokens.
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
