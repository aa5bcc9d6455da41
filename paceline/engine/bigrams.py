"""What a model says follows its commonest tokens, whatever came before: guesses for places of which nothing is known yet.

The matrix of Token Recycling (Luo et al. 2024, section 3) is empty at first. Here the model itself fills it: one forward behind
the token that begins a text has hundreds of tokens as each other's siblings. Ids of vocabularies that were made by merging are in
the order of the merges, about that of frequency, so the first ones are worth most.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.common import cache
from paceline.engine.best_tokens import likeliest
from paceline.engine.drafter import TopTokens
from paceline.engine.identity import model_identity
from paceline.engine.model import CachedLM
from paceline.engine.sequence import SamplingParams, Sequence
from paceline.engine.tree import DraftTree

_KIND = "bigrams-v1"  # another number when what is found or written changes
_MOST, _MOST_SECONDS = 16384, 12.0  # tokens; no forward is begun after so long
_TOP = 8
_LOGITS, _WIDEST = 1 << 24, 512  # of one forward: logits, and tokens
_WORTH_KEEPING = 1 << 36  # multiply-adds; fewer are made again sooner than read


@dataclass(frozen=True, slots=True)
class _Found:
    """Attributes: token_ids: int32 [tokens, k], probs: float32 [tokens, k], as `TopTokens` has them, in base64. k: as above."""

    k: int
    token_ids: str
    probs: str

    @classmethod
    def of(cls, top: TopTokens) -> _Found:
        columns = top.token_ids.astype("<i4"), top.probs.astype("<f4")
        return cls(top.token_ids.shape[1], *(base64.b64encode(column.tobytes()).decode() for column in columns))

    def top(self) -> TopTokens:
        token_ids, probs = (
            np.frombuffer(base64.b64decode(text), kind).reshape(-1, self.k)
            for text, kind in ((self.token_ids, "<i4"), (self.probs, "<f4"))
        )
        return TopTokens(token_ids.astype(np.int64), probs.astype(np.float32))


def bigrams(model: CachedLM) -> TopTokens:
    """Return what follows token i, row by row, for the first tokens of the vocabulary; none where trees cannot be verified.

    Found where it was not before for these weights, in at most `_MOST_SECONDS` and one forward.
    """
    tokens = min(_MOST, model.vocab_size) if model.takes_trees else 0
    weights = sum(parameter.numel() for parameter in model.model.parameters())
    if tokens * weights < _WORTH_KEEPING:
        return _find(model, tokens)
    name = f"what {model.model.__class__.__name__} says follows its commonest tokens"
    place = cache.Place(_KIND, model_identity(model.model)[0], name, "bigrams.json")
    return cache.remember(place, lambda: _Found.of(_find(model, tokens)), _read).top()


def _find(model: CachedLM, tokens: int) -> TopTokens:
    apart = model.apart()
    seq = Sequence([_first_token(model)], SamplingParams())
    apart.open(seq)
    width = max(1, min(_WIDEST, _LOGITS // model.vocab_size))
    k = min(_TOP, model.vocab_size)
    said = [(np.empty((0, k), np.int64), np.empty((0, k), np.float32))]
    begin = time.perf_counter()
    for first in range(0, tokens, width):
        if first and time.perf_counter() - begin > _MOST_SECONDS:
            break
        some = list(range(first, min(first + width, tokens)))
        logits = apart.forward([seq], [DraftTree(some, [-1] * len(some))])[0, 1:]
        said.append(likeliest(logits, k))
    apart.close(seq)
    return TopTokens(*(np.concatenate(column) for column in zip(*said, strict=True)))


def _first_token(model: CachedLM) -> int:
    """Return the token that begins a text, else one that ends it."""
    config = model.model.config.get_text_config(decoder=True)
    for named in (config.bos_token_id, config.eos_token_id):
        token = named[0] if isinstance(named, list) and named else named
        if isinstance(token, int) and 0 <= token < model.vocab_size:
            return token
    return 0


def _read(kept: dict[str, Any]) -> _Found:
    found = _Found(**kept)
    found.top()  # raises where it is damaged, so that it is found again
    return found
