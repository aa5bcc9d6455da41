"""Compute the acceptance probabilities of sampled drafts in one batch on a device.

In traversal verification, a node's share is the probability that the accepted path ends at this
node or at a descendant (see `rules`). In rejection sampling, every accepted node has a share of 1.

The shares depend on the tree and the logits, but not on random numbers. The acceptance probability
of every node and the token after every node can therefore be computed before the walk through the
tree. The computation runs asynchronously, and the results are copied to the host together with
other data.
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


class NodeShares(NamedTuple):
    """Precomputed values for verifying one tree that has sampled nodes.

    Traversal verification tests a node after all its descendants have been rejected, so its
    acceptance probability depends on these rejections (`chances`). If no token may follow the node,
    for example because it is an end token, the descendants are not tested (`reaches`). Rejection
    sampling tests a node before its descendants, and always uses `reaches`.

    Attributes:
        reaches: Acceptance probability of each node if its descendants have not been tested.
        chances: Acceptance probability of each node after its descendants have been rejected.
        tokens: Token that follows the root and every node if all descendants are rejected.
    """

    reaches: list[float]
    chances: list[float]
    tokens: list[int]


class _Round(NamedTuple):
    """Nodes of one or more trees, whose shares are computed together.

    In traversal verification, a node's share is the probability that the accepted path ends at
    this node or at a descendant (see `rules`).

    Attributes:
        rows: Row of each node's parent, [n]. In the arrays of the batch, each tree has one row for
            its root and one for each node.
        tokens: Token of each node, [n].
        nodes: Row of each node, [n].
        probs: Distribution from which each node was sampled, [vocab]; None for a node that was not
            sampled.
    """

    rows: list[int]
    tokens: list[int]
    nodes: list[int]
    probs: list[Tensor | None]


def prepare_shares(
    scores: Tensor, requests: Sequence[Request], trees: Sequence[DraftTree], rows: Sequence[int]
) -> Pending:
    """Start computing acceptance probabilities for requests with sampled drafts.

    Args:
        scores: Scores from `target_scores`, [batch, 1 + width, vocab].
        requests: Requests of the batch.
        trees: Draft trees of the requests.
        rows: Batch indices (rows) of the requests with sampled drafts.
    Returns:
        A pending result. Once finished, it maps each of `rows` to the request's `NodeShares`.
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
    leaf_first_rows = [tree.leaf_first for tree in sampled for _ in range(1 + len(tree))]
    row_indices, leaf_first, words, *indices = upload(
        device,
        which,
        np.array(leaf_first_rows),
        sampler.words_of(keys),
        *(np.array((each.rows, each.tokens, each.nodes), dtype=np.int64) for each in rounds),
    )
    weights = scores.reshape(-1, scores.shape[-1])[row_indices].softmax(-1)
    reaches = weights.new_ones(len(which))
    shares = weights.new_ones(len(which))
    for each, (parents, tokens, nodes) in zip(rounds, indices, strict=True):
        reach, share, left = _split(shares[parents], weights[parents], tokens, each.probs)
        weights.index_copy_(0, parents, left)
        shares.index_copy_(0, parents, share)
        reaches.index_copy_(0, nodes, reach)
        shares.index_copy_(0, nodes, torch.where(leaf_first[nodes], reach, 1.0))
    tokens = marked_argmax(weights / sampler.noise_from(words, weights.shape[-1]))

    def finish(arrays: Arrays) -> dict[int, NodeShares]:
        reach_list, share_list, token_list = (array.tolist() for array in arrays)
        starts = accumulate(sizes, initial=0)
        return {
            row: NodeShares(
                reach_list[start + 1 : start + size],
                share_list[start + 1 : start + size],
                token_list[start : start + size],
            )
            for row, start, size in zip(rows, starts, sizes, strict=False)
        }

    return Pending([reaches, shares, tokens], finish)


def _keys(request: Request, tree: DraftTree) -> list[tuple[int, int]]:
    """Return the noise keys of the tokens after the root and after each node.

    A key selects the random noise for sampling a token.
    """
    start = len(request) - request.prompt_length
    return [
        sampler.noise_key(request.params.seed, start + depth, sampler.RESIDUAL)
        for depth in (0, *node_depths(tree.parents).tolist())
    ]


def _rounds(trees: Sequence[DraftTree]) -> list[_Round]:
    """Divide the nodes of all trees into rounds, which are computed one after another.

    The share of a node depends on its parent and on its earlier siblings, so all of these belong to
    earlier rounds. For example, a tree has the nodes 0 and 1 below the root, and node 2 below node
    0. The first round contains node 0. The second round contains the nodes 1 and 2.

    Among a tree's rows, row 0 belongs to the root, and row i + 1 to node i.
    """
    rounds: list[_Round] = []
    start = 0
    for tree in trees:
        probs = tree.probs or [None] * len(tree)
        ready = [0] * (1 + len(tree))  # first round that may change each row
        for node, parent in enumerate(tree.parents[: tree.num_candidates]):
            number = ready[parent + 1]
            ready[parent + 1] = ready[node + 1] = number + 1
            if number == len(rounds):
                rounds.append(_Round([], [], [], []))
            each = rounds[number]
            each.rows.append(start + parent + 1)
            each.tokens.append(tree.token_ids[node])
            each.nodes.append(start + node + 1)
            each.probs.append(probs[node])
        start += 1 + len(tree)
    return rounds


def _split(
    shares: Tensor, weights: Tensor, tokens: Tensor, probs: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each node's share, and what remains for its parent after a rejection.

    Each of the nodes has a different parent.

    Args:
        shares: Share of each parent (see `rules`), [n].
        weights: Target distribution after each parent, [n, vocab].
        tokens: Token of each node, [n].
        probs: Distribution from which each node was sampled; None for a node that was not sampled.
    Returns:
        The share of each node, followed by the new share and the new target distribution of each
        parent if its node is rejected.
    """
    columns, joint = tokens[:, None], shares[:, None] * weights
    own = joint.gather(1, columns)
    if all(dist is not None for dist in probs):
        drafted = torch.stack([dist for dist in probs if dist is not None])
        reach = own / drafted.gather(1, columns)
    else:
        # The share of a node that was not sampled is its target probability times its parent's
        # share. A rejection removes this product from the distribution.
        nothing = torch.zeros_like(weights[0])
        drafted = torch.stack([nothing if dist is None else dist for dist in probs])
        (sampled,) = upload(weights.device, np.array([[dist is not None] for dist in probs]))
        divisor = torch.where(sampled, drafted.gather(1, columns), 1.0)
        reach = own / divisor
        drafted.scatter_(1, columns, torch.where(sampled, divisor, own))
    rest = (joint - drafted).clip(0)
    total = rest.sum(-1)
    divisor = 1 - shares + total
    share = torch.where(divisor > 0, total / divisor, shares)
    left = torch.where(total[:, None] > 0, rest / total[:, None], weights)
    return reach[:, 0].clamp(max=1), share, left
