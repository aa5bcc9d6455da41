"""Predict a draft tree from the hidden state that produced the newest token.

The target computes the logits for the newest token from a hidden state. This state also contains
information about the token after the newest one (Pal et al. 2023, "Future Lens"). The newest token
adds more information. EAGLE (Li et al. 2024, section 3) therefore trains a transformer layer to
predict the next hidden state from the state and the newest token. Here, a matrix product and a
small network without attention (`weights`) replace the layer. The tree grows level by level: the
predicted states of the most likely paths are the inputs for the next level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.backend.resolve import topk_tokens
from paceline.core.drafter import Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.origin import Origin
from paceline.core.tree import DraftTree
from paceline.draft_head.graphs import HeadGraphs, TreeShape
from paceline.draft_head.settings import PredictionSettings
from paceline.draft_head.weights import Weights, embedding_and_head
from paceline.model.cached_lm import CachedLM
from paceline.util.device_copies import Arrays, Pending, finish, upload

_SETTINGS = PredictionSettings()


class _Level(NamedTuple):
    """The predicted tokens in one level of all requests' draft trees, on the device.

    Attributes:
        token_ids: Token ids, [requests, tokens].
        probs: Probability of each token given its parent, float32 [requests, tokens].
        path_probs: Path probability of each token, float32 [requests, tokens].
        continued: Index, in the previous level, of each token that has children in this level,
            [requests, paths]. All these tokens have the same number of children. None for the first
            level, whose tokens follow the newest token.
        states: Predicted hidden state after each parent, [requests * paths, hidden].
    """

    token_ids: Tensor
    probs: Tensor
    path_probs: Tensor
    continued: Tensor | None
    states: Tensor

    @property
    def to_fetch(self) -> list[Tensor]:
        """Return the tensors from which the host builds the draft trees."""
        return [self.token_ids, self.probs, *([] if self.continued is None else [self.continued])]


class DraftHead:
    """Predicts draft trees from the target's hidden states.

    Args:
        model: Target model, whose embedding and LM head the draft head uses.
        weights: Weights of the draft head.
    Attributes:
        levels: Maximum depth of a draft tree, in tokens.
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
        self._token_ids = None if is_prefix else token_ids
        self.levels = weights.levels
        self._graphs: HeadGraphs | None = None
        if model.has_graphs:
            tensors = (self._embedding, self._first, self._bias, self._outer, self._head)
            self._graphs = HeadGraphs(self._grow, tensors)

    def predict(
        self, states: Tensor, token_ids: Sequence[int], levels: int = _SETTINGS.max_levels
    ) -> list[DraftTree]:
        """Predict a draft tree for each pair of a hidden state and its chosen token.

        Args:
            states: Hidden states, which are the inputs of the LM head, [n, hidden].
            token_ids: Token chosen from the logits of each state, [n]. The draft tree follows this
                token.
            levels: Maximum depth of a draft tree, in tokens.
        """
        (tokens,) = upload(states.device, token_ids)
        trees: list[DraftTree] = finish([self._predict(states, tokens, levels)])[0]
        return trees

    def predict_after(
        self, outcomes: Sequence[Outcome], logits: NodeLogits, levels: int
    ) -> Pending:
        """Start predicting a draft tree for each outcome of a step.

        Args:
            outcomes: Outcomes of the step.
            logits: Logits and hidden states of the step, with the rows in the same order as
                `outcomes`.
            levels: Maximum depth of a draft tree, in tokens.
        Returns:
            The pending computation, whose result is the list of draft trees.
        """
        if not outcomes:
            return Pending((), lambda arrays: [])
        assert logits.states is not None, "the forward pass returns them"
        rows = [
            start + (1 + outcome.accepted[-1] if outcome.accepted else 0)
            for start, outcome in zip(logits.starts, outcomes, strict=True)
        ]
        newest = [outcome.new_token_ids[-1] for outcome in outcomes]
        which, tokens = upload(logits.flat.device, rows, newest)
        return self._predict(logits.states[:, 0].index_select(0, which), tokens, levels)

    @torch.inference_mode()
    def _predict(self, states: Tensor, token_ids: Tensor, levels: int) -> Pending:
        """Start the computation of `predict` without waiting for the device."""
        continued = min(_SETTINGS.num_continued, _SETTINGS.max_rows // len(token_ids))
        shape = TreeShape(min(levels, self.levels) if continued else 1, continued)
        if self._graphs is not None:
            return self._graphs.run(states, token_ids, shape, _trees)
        return Pending(self._grow(states, token_ids, shape), _trees)

    def _grow(self, states: Tensor, token_ids: Tensor, shape: TreeShape) -> list[Tensor]:
        """Compute the levels of a draft tree for each state.

        Args:
            states: Hidden states, [n, hidden].
            token_ids: Token chosen from each state, [n].
            shape: Shape of the draft trees.
        Returns:
            Tensors of all levels on the device, in the order that `_trees` expects.
        """
        continued = shape.num_continued
        with self._products.thread_team(len(token_ids) * max(1, continued)):
            predicted = [self._after(states, token_ids)]
            for _ in range(shape.num_levels - 1):
                level = predicted[-1]
                predicted.append(self._next(level, min(continued, level.token_ids.shape[1])))
        return [tensor for each in predicted for tensor in each.to_fetch]

    def _after(self, states: Tensor, token_ids: Tensor) -> _Level:
        """Compute the first level: the most likely tokens after each request's newest one."""
        following = self.next_states(states, token_ids)
        guesses, probs = self.guess(following, _SETTINGS.num_first)
        return _Level(guesses, probs, probs, None, following)

    def _next(self, level: _Level, num_continued: int) -> _Level:
        """Compute the next level, which extends the most likely paths of each request.

        Args:
            level: Level to extend.
            num_continued: Number of paths to extend per request.
        """
        order = level.path_probs.sort(dim=1, descending=True, stable=True).indices
        best = order[:, :num_continued]
        num_requests, num_tokens = level.token_ids.shape
        # Tokens with the same parent are adjacent, and so are the states of a request.
        num_paths = len(level.states) // num_requests
        first = torch.arange(num_requests, device=best.device)[:, None] * num_paths
        rows = first + best.div(num_tokens // num_paths, rounding_mode="floor")
        following = self.next_states(
            level.states[rows.view(-1)], level.token_ids.gather(1, best).view(-1)
        )
        guesses, probs = self.guess(following, _SETTINGS.num_later)
        paths = level.path_probs.gather(1, best)[..., None] * probs.view(*best.shape, -1)
        shape = num_requests, -1
        return _Level(guesses.view(shape), probs.view(shape), paths.view(shape), best, following)

    def next_states(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Predict the next hidden states.

        Args:
            states: Current hidden states, [n, hidden].
            token_ids: Token chosen from each state, [n].
        Returns:
            Hidden states after these tokens, [n, hidden].
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

    def guess(self, states: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the most likely tokens for states [n, hidden], and their probabilities.

        Both results are [n, count], on the device. The probabilities are normalised over the
        reduced draft vocabulary.
        """
        logits = self._products.linear(states, self._head, self._head_bias)
        columns, probs = topk_tokens(logits, count)
        return columns if self._token_ids is None else self._token_ids[columns], probs


def _trees(arrays: Arrays) -> list[DraftTree]:
    """Build draft trees from the predicted levels.

    Args:
        arrays: Token ids and probabilities of the first level, followed by the token ids,
            probabilities and `_Level.continued` of each later level.
    """
    token_ids, probs, parents = [arrays[0]], [arrays[1]], [np.full_like(arrays[0], -1)]
    first_above = 0  # index of the first node in the previous level
    for start in range(2, len(arrays), 3):
        level_ids, level_probs, continued = arrays[start : start + 3]
        num_successors = level_ids.shape[1] // continued.shape[1]
        parents.append(first_above + np.repeat(continued, num_successors, axis=1))
        first_above += token_ids[-1].shape[1]
        token_ids.append(level_ids)
        probs.append(level_probs)
    # Converting all trees at once is faster than converting each row.
    rows = [np.concatenate(levels, axis=1).tolist() for levels in (token_ids, parents, probs)]
    origins = [Origin.DRAFT_HEAD] * len(rows[0][0])
    return [
        DraftTree(tokens, above, None, confidence, origins=origins)
        for tokens, above, confidence in zip(*rows, strict=True)
    ]
