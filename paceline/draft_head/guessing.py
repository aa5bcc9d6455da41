"""Guesses of what follows the newest token, from the hidden state it was chosen by, as a tree.

The state of which a token was made tells something of the next one, too (Pal et al. 2023, "Future
Lens"); with the token that was chosen it tells more. EAGLE (Li et al. 2024, section 3) trains a
layer of the target's own form that makes the next state of both. Here it is one product and a small
layer beside it (`weights`), without attention. What it makes of a guess goes in again for the next
level: the likeliest paths go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from paceline.backend.resolve import topk_tokens
from paceline.core.drafter import Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.origin import Origin
from paceline.core.tree import DraftTree, IntArray
from paceline.draft_head.weights import Weights, ends
from paceline.model.cached_lm import CachedLM

_FIRST, _LATER = 16, 8  # guesses after the newest token, and after each guess that goes on
_GO_ON = 4  # guesses of a level
_FARTHEST = 16  # levels
_ROWS = 8  # of all sequences: more would cost more than the weights' way from memory


class _Level(NamedTuple):
    """The guesses of a level. Attributes, all [sequences, guesses] but for the last:

    token_ids. parents: the guess before, in the level before; -1 = the newest token. probs: after
    that. path_probs. rows: of `states`, that they were made of. states: [n, hidden].
    """

    token_ids: IntArray
    parents: IntArray
    probs: NDArray[np.float32]
    path_probs: NDArray[np.float32]
    rows: IntArray
    states: Tensor


class DraftHead:
    """Guesses what follows rows of hidden states.

    Args:
        model: whose states they are.
    Attributes:
        levels: how many tokens ahead the guesses go.
    """

    def __init__(self, model: CachedLM, weights: Weights) -> None:
        embedding, head = ends(model)
        self._embedding, self._products = embedding.weight, model.products
        self._first, self._bias, self._outer = (
            one.to(head.weight.device, head.weight.dtype).contiguous()
            for one in (weights.first, weights.bias, weights.outer)
        )
        kept = weights.kept.to(head.weight.device)
        whole = torch.equal(kept, torch.arange(len(kept), device=kept.device))
        rows = slice(len(kept)) if whole else kept
        self._head, self._head_bias = (
            head.weight[rows],
            None if head.bias is None else head.bias[rows],
        )
        self._kept = weights.kept.cpu().numpy()
        self.levels = weights.levels

    @torch.inference_mode()
    def predict(
        self, states: Tensor, token_ids: Sequence[int], levels: int = _FARTHEST
    ) -> list[DraftTree]:
        """Return a tree of guesses for each state: what follows the token that was chosen by it.

        Args:
            states: [n, hidden], what the LM head was fed. token_ids: [n], chosen by what it made of
                them.
            levels: most tokens ahead.
        """
        level = self._after(states, torch.tensor(token_ids, device=states.device), _FIRST)
        count = len(token_ids)
        made = [level]
        go_on = min(_GO_ON, _ROWS // count)
        for _ in range(min(levels, self.levels) - 1 if go_on else 0):
            level = self._next(level, min(go_on, level.token_ids.shape[1]))
            made.append(level)
        return [_tree(made, row) for row in range(count)]

    def add_to(self, outcomes: Sequence[Outcome], logits: NodeLogits, levels: int) -> list[Outcome]:
        """Add `head_draft` to the outcomes of a step.

        Args:
            logits: with their states, the rows in the order of `outcomes`. levels: most tokens
                ahead.
        """
        if not outcomes:
            return []
        assert logits.states is not None, "asked for"
        places = [
            start + (1 + outcome.accepted[-1] if outcome.accepted else 0)
            for start, outcome in zip(logits.starts, outcomes, strict=True)
        ]
        trees = self.predict(
            logits.states[places, 0], [outcome.new_token_ids[-1] for outcome in outcomes], levels
        )
        return [
            replace(outcome, head_draft=tree) for outcome, tree in zip(outcomes, trees, strict=True)
        ]

    def _after(self, states: Tensor, token_ids: Tensor, count: int) -> _Level:
        """Return the guesses behind the newest tokens."""
        following = self.next_states(states, token_ids)
        guesses, probs = self.guess(following, count)
        rows = np.repeat(np.arange(len(guesses))[:, None], guesses.shape[1], axis=1)
        return _Level(guesses, np.full_like(guesses, -1), probs, probs, rows, following)

    def _next(self, level: _Level, go_on: int) -> _Level:
        """Return the guesses behind the likeliest paths of a level, so many of each sequence."""
        best = np.argsort(-level.path_probs, axis=1, kind="stable")[:, :go_on]
        rows, token_ids, path_probs = (
            np.take_along_axis(of_guess, best, axis=1)
            for of_guess in (level.rows, level.token_ids, level.path_probs)
        )
        device = level.states.device
        tokens = torch.from_numpy(token_ids.ravel()).to(device)
        following = self.next_states(
            level.states[torch.from_numpy(rows.ravel()).to(device)], tokens
        )
        guesses, probs = self.guess(following, _LATER)
        each = guesses.shape[1]
        count = len(level.token_ids)
        paths = np.repeat(path_probs, each, axis=1) * probs.reshape(count, -1)
        made = np.repeat(np.arange(count * go_on).reshape(count, go_on), each, axis=1)
        return _Level(
            guesses.reshape(count, -1),
            np.repeat(best, each, axis=1),
            probs.reshape(count, -1),
            paths,
            made,
            following,
        )

    def next_states(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Return what is expected of the states [n, hidden] behind those given, by the tokens
        between.
        """
        inputs = torch.cat(
            (states.to(self._first.dtype), self._embedding[token_ids].to(self._first.dtype)), dim=-1
        )
        products, hidden = self._products, len(self._outer)
        both = products.linear(inputs, self._first, self._bias)
        if both.shape[-1] == hidden:
            return both
        return both[:, :hidden] + products.linear(
            functional.silu(both[:, hidden:]), self._outer, None
        )

    def guess(self, states: Tensor, count: int) -> tuple[IntArray, NDArray[np.float32]]:
        """Return the likeliest tokens of states [n, hidden], and their probabilities among those
        that are kept, [n, count].
        """
        places, probs = topk_tokens(
            self._products.linear(states, self._head, self._head_bias), count
        )
        return self._kept[places], probs


def _tree(levels: Sequence[_Level], row: int) -> DraftTree:
    """Return the guesses of one sequence."""
    token_ids: list[int] = []
    parents: list[int] = []
    confidence: list[float] = []
    before = 0
    for level in levels:
        start = len(token_ids)
        parents += (level.parents[row] + before).tolist()
        token_ids += level.token_ids[row].tolist()
        confidence += level.probs[row].tolist()
        before = start
    return DraftTree(
        token_ids, parents, None, confidence, origins=[Origin.DRAFT_HEAD] * len(token_ids)
    )
