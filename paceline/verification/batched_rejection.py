"""Prepare rejection sampling for a batch without waiting for the device.

Children of a node are tested in order, each against the weights that earlier rejections have left.
These weights do not depend on the random numbers, so the acceptance probability of every node and
the token after every node are known before the walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.core.not_numbers import marked_argmax
from paceline.core.request import Request
from paceline.core.tree import DraftTree, node_depths
from paceline.sampling import sampler
from paceline.util.device_copies import Arrays, Pending, upload


class Rejections(NamedTuple):
    """Precomputed results for the walk through one tree.

    Attributes:
        chances: Acceptance probability of each node if its earlier siblings were rejected.
        tokens: Token after the root and every node if all its children were rejected.
    """

    chances: list[float]
    tokens: list[int]


class _Round(NamedTuple):
    """The children with the same rank among their siblings, over all trees.

    Attributes:
        rows: [n] row of the parent.
        tokens: [n] token of the child.
        nodes: [n] index of the child over all trees.
        probs: Distribution that each child was sampled from, [vocab]; None for a guess.
    """

    rows: list[int]
    tokens: list[int]
    nodes: list[int]
    probs: list[Tensor | None]


def prepare_rejections(
    scores: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree], rows: Sequence[int]
) -> Pending:
    """Return the pending `Rejections` of requests, as a dictionary by row.

    Args:
        scores: Scores [batch, 1 + width, vocab] from `target_scores`.
        requests: Requests of the batch.
        trees: Their draft trees.
        rows: Rows of the sampled requests.
    """
    device, width = scores.device, scores.shape[1]
    sampled = [trees[row] for row in rows]
    sizes = [1 + len(tree) for tree in sampled]
    rounds = _rounds(sampled)
    which = np.concatenate(
        [
            row * width + np.arange(size, dtype=np.int64)
            for row, size in zip(rows, sizes, strict=True)
        ]
    )
    keys = [key for row in rows for key in _keys(requests[row], trees[row])]
    row_indices, words, *indices = upload(
        device,
        which,
        sampler.words_of(keys),
        *(np.array((each.rows, each.tokens, each.nodes), dtype=np.int64) for each in rounds),
    )
    weights = scores.reshape(-1, scores.shape[-1])[row_indices].softmax(-1)
    chances = weights.new_zeros(len(which))
    for each, (parents, tokens, nodes) in zip(rounds, indices, strict=True):
        left, chance = _test(weights[parents], tokens, each.probs)
        chances.index_copy_(0, nodes, chance)
        weights.index_copy_(0, parents, left)
    tokens = marked_argmax(weights / sampler.noise_from(words, weights.shape[-1]))

    def finish(arrays: Arrays) -> dict[int, Rejections]:
        chance_list, token_list = (array.tolist() for array in arrays)
        starts = accumulate(sizes, initial=0)
        return {
            row: Rejections(chance_list[start + 1 : start + size], token_list[start : start + size])
            for row, start, size in zip(rows, starts, sizes, strict=False)
        }

    return Pending([chances, tokens], finish)


def _keys(request: Request, tree: DraftTree) -> list[tuple[int, int]]:
    """Return the key of the noise after the root and every node."""
    start = len(request) - request.prompt_length
    return [
        sampler.noise_key(request.params.seed, start + depth, sampler.RESIDUAL)
        for depth in (0, *node_depths(tree.parents).tolist())
    ]


def _rounds(trees: Sequence[DraftTree]) -> list[_Round]:
    """Return the children of all nodes, by their rank among siblings.

    Row and node i + 1 of a tree belong to its node i; row 0 belongs to the root.
    """
    rounds: list[_Round] = []
    start = 0
    for tree in trees:
        probs = tree.probs or [None] * len(tree)
        for parent, children in enumerate(tree.children()):
            for rank, child in enumerate(children):
                if rank == len(rounds):
                    rounds.append(_Round([], [], [], []))
                each = rounds[rank]
                each.rows.append(start + parent)
                each.tokens.append(tree.token_ids[child])
                each.nodes.append(start + child + 1)
                each.probs.append(probs[child])
        start += 1 + len(tree)
    return rounds


def _test(weights: Tensor, tokens: Tensor, probs: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Return the weights that remain after a rejection, and acceptance probabilities.

    Args:
        weights: Weights before, [n, vocab].
        tokens: Token of each child, [n].
        probs: Distribution that each child was sampled from; None for a guess.
    """
    columns = tokens[:, None]
    own = weights.gather(1, columns)
    if all(dist is not None for dist in probs):
        drafted = torch.stack([dist for dist in probs if dist is not None])
        chance = own / drafted.gather(1, columns)
    else:
        # A guess has no distribution: it is accepted with its own weight, which a rejection takes.
        nothing = torch.zeros_like(weights[0])
        drafted = torch.stack([nothing if dist is None else dist for dist in probs])
        (sampled,) = upload(weights.device, np.array([[dist is not None] for dist in probs]))
        divisor = torch.where(sampled, drafted.gather(1, columns), 1.0)
        chance = own / divisor
        drafted.scatter_(1, columns, torch.where(sampled, divisor, own))
    rest = (weights - drafted).clip(0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, weights), chance[:, 0]
