"""Predict a draft tree from the hidden state that gave the newest token.

A hidden state also contains information about the token after the next one (Pal et al. 2023,
"Future Lens"). Together with the chosen token, it contains more. EAGLE (Li et al. 2024, section 3)
trains a layer like the target's that predicts the next state from both. Here, the layer is one
matrix product and a small network (`weights`), without attention. For the most likely paths, the
predicted state is the input to the next level.
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
from paceline.draft_head.settings import PredictionSettings
from paceline.draft_head.weights import Weights, embedding_and_head
from paceline.model.cached_lm import CachedLM

_SETTINGS = PredictionSettings()


class _Level(NamedTuple):
    """Hold the predicted tokens for one level.

    Attributes:
        token_ids: [requests, tokens] token ids.
        parents: [requests, tokens] parent in the previous level; -1 = the newest token.
        probs: [requests, tokens] probability given the parent.
        path_probs: [requests, tokens] path probability.
        rows: [requests, tokens] row of `states` from which the token was predicted.
        states: [n, hidden] predicted states.
    """

    token_ids: IntArray
    parents: IntArray
    probs: NDArray[np.float32]
    path_probs: NDArray[np.float32]
    rows: IntArray
    states: Tensor


class DraftHead:
    """Predict the tokens that follow rows of hidden states.

    Args:
        model: The target.
        weights: Weights of the head.
    Attributes:
        levels: Maximum number of tokens ahead.
    """

    def __init__(self, model: CachedLM, weights: Weights) -> None:
        embedding, head = embedding_and_head(model)
        self._embedding, self._products = embedding.weight, model.products
        self._first, self._bias, self._outer = (
            tensor.to(head.weight.device, head.weight.dtype).contiguous()
            for tensor in (weights.first, weights.bias, weights.outer)
        )
        token_ids = weights.token_ids.to(head.weight.device)
        is_prefix = torch.equal(token_ids, torch.arange(len(token_ids), device=token_ids.device))
        rows = slice(len(token_ids)) if is_prefix else token_ids
        self._head = head.weight[rows]
        self._head_bias = None if head.bias is None else head.bias[rows]
        self._token_ids = weights.token_ids.cpu().numpy()
        self.levels = weights.levels

    @torch.inference_mode()
    def predict(
        self, states: Tensor, token_ids: Sequence[int], levels: int = _SETTINGS.max_levels
    ) -> list[DraftTree]:
        """Return a draft tree for each state, following the token chosen from the state.

        Args:
            states: [n, hidden] inputs of the LM head.
            token_ids: [n] tokens chosen from the logits at these states.
            levels: Maximum number of tokens ahead.
        """
        level = self._after(
            states, torch.tensor(token_ids, device=states.device), _SETTINGS.num_first
        )
        num_requests = len(token_ids)
        predicted = [level]
        continued = min(_SETTINGS.num_continued, _SETTINGS.max_rows // num_requests)
        for _ in range(min(levels, self.levels) - 1 if continued else 0):
            level = self._next(level, min(continued, level.token_ids.shape[1]))
            predicted.append(level)
        return [_tree(predicted, row) for row in range(num_requests)]

    def add_to(self, outcomes: Sequence[Outcome], logits: NodeLogits, levels: int) -> list[Outcome]:
        """Add `head_draft` to the outcomes of a step.

        Args:
            outcomes: Outcomes in the step.
            logits: Logits with states; the rows are in the same order as `outcomes`.
            levels: Maximum number of tokens ahead.
        """
        if not outcomes:
            return []
        assert logits.states is not None, "the forward pass returns them"
        rows = [
            start + (1 + outcome.accepted[-1] if outcome.accepted else 0)
            for start, outcome in zip(logits.starts, outcomes, strict=True)
        ]
        trees = self.predict(
            logits.states[rows, 0], [outcome.new_token_ids[-1] for outcome in outcomes], levels
        )
        return [
            replace(outcome, head_draft=tree) for outcome, tree in zip(outcomes, trees, strict=True)
        ]

    def _after(self, states: Tensor, token_ids: Tensor, count: int) -> _Level:
        """Return the level after the newest tokens."""
        following = self.next_states(states, token_ids)
        guesses, probs = self.guess(following, count)
        rows = np.repeat(np.arange(len(guesses))[:, None], guesses.shape[1], axis=1)
        return _Level(guesses, np.full_like(guesses, -1), probs, probs, rows, following)

    def _next(self, level: _Level, continued: int) -> _Level:
        """Return the next level, after each request's `continued` most likely paths."""
        best = np.argsort(-level.path_probs, axis=1, kind="stable")[:, :continued]
        rows, token_ids, path_probs = (
            np.take_along_axis(column, best, axis=1)
            for column in (level.rows, level.token_ids, level.path_probs)
        )
        device = level.states.device
        tokens = torch.from_numpy(token_ids.ravel()).to(device)
        following = self.next_states(
            level.states[torch.from_numpy(rows.ravel()).to(device)], tokens
        )
        guesses, probs = self.guess(following, _SETTINGS.num_later)
        each = guesses.shape[1]
        num_requests = len(level.token_ids)
        paths = np.repeat(path_probs, each, axis=1) * probs.reshape(num_requests, -1)
        next_rows = np.arange(num_requests * continued).reshape(num_requests, continued)
        return _Level(
            guesses.reshape(num_requests, -1),
            np.repeat(best, each, axis=1),
            probs.reshape(num_requests, -1),
            paths,
            np.repeat(next_rows, each, axis=1),
            following,
        )

    def next_states(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Return the predicted states [n, hidden] after the given states and tokens."""
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
        """Return the most likely tokens for states [n, hidden], and their probabilities.

        Both are [n, count]. The probabilities are over the reduced draft vocabulary.
        """
        logits = self._products.linear(states, self._head, self._head_bias)
        columns, probs = topk_tokens(logits, count)
        return self._token_ids[columns], probs


def _tree(levels: Sequence[_Level], row: int) -> DraftTree:
    """Return the predicted tokens for one request."""
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
