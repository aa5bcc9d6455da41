"""What a forward takes, and what batch invariance costs it: forwards of one row behind a text, with it and without, by turns."""

from __future__ import annotations

import math
from functools import partial

from transformers import PreTrainedModel

from paceline.engine.model import CachedLM
from paceline.engine.products.own import Products
from paceline.engine.sequence import SamplingParams, Sequence
from paceline.engine.stopwatch import Stopwatch
from paceline.engine.tree import EMPTY_TREE, DraftTree

CONTEXT = 512  # tokens of the text, where the model takes so many
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 16


def forward_cost(model: PreTrainedModel, least_rows: int, products: Products, enough: float) -> float:
    """Return the time of a batch-invariant forward over that of the usual one: products, attention and all else.

    Args:
        least_rows, products: of the batch-invariant forwards.
        enough: no more rounds are made once the cost is found to be no higher: another program can only make a forward slower.
    """
    invariant = CachedLM(model, batch_invariant=True, least_rows=least_rows, products=products)
    usual = CachedLM(model)
    context = min(CONTEXT, invariant.context_length - 2)
    best = [math.inf, math.inf]
    seqs = [_opened(lm, context) for lm in (invariant, usual)]
    stopwatch = Stopwatch.suited(model.device, partial(run_forward, usual, seqs[1], EMPTY_TREE))
    for turn in range(_MOST_ROUNDS):
        for place, (lm, seq) in enumerate(zip((invariant, usual), seqs, strict=True)):
            best[place] = min(best[place], stopwatch.seconds(partial(run_forward, lm, seq, EMPTY_TREE)))
        if turn + 1 >= _LEAST_ROUNDS and best[0] <= enough * best[1]:
            break
    return best[0] / best[1]


def run_forward(lm: CachedLM, seq: Sequence, tree: DraftTree) -> None:
    """Make one forward of a sequence and its tree, of which nothing is committed, and wait for an accelerator."""
    lm.forward([seq], [tree])[0, -1, 0].item()


def _opened(lm: CachedLM, context: int) -> Sequence:
    """Return a sequence that counts as cached but for its newest token: the cache holds zeros, which take as long to read."""
    seq = Sequence([0] * (context + 1), SamplingParams())
    lm.reserve(1, context + 1)
    lm.open(seq)
    seq.cached = context
    return seq
