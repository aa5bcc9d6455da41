"""Find the scores that sampling options change, such as those of forbidden tokens.

The scores [rows, vocab] are indexed as one flat array. Every request has one row for its root and
one row for each node of its tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.request import Request
from paceline.core.tree import DraftTree, IntArray, node_depths, tree_shape
from paceline.sampling.settings import MAX_DIVISOR, MIN_DIVISOR

_NO_INDICES, _NO_NUMBERS = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)


class ScoreIndices(NamedTuple):
    """Indices of the scores that sampling options change.

    The scores of all rows form one flat array: the score of token t in row r has the index
    r * vocabulary size + t. Each request has one row for its root and one row for each node.

    Attributes:
        owner: Index of the request to which each row belongs, [rows]. Empty if no request has
            penalties.
        penalties: Repetition, frequency and presence penalty of each row, float32 [3, rows]. Empty
            if no request has penalties.
        paths: For each row, the indices of the row's scores for the draft tokens on the path to
            the row's node. The indices of all rows are concatenated in row order.
        biased: Indices of the scores to which a bias is added.
        biases: Bias for each index in `biased`, float32.
        banned: Indices of the scores of forbidden tokens.
    """

    owner: IntArray
    penalties: NDArray[np.float32]
    paths: IntArray
    biased: IntArray
    biases: NDArray[np.float32]
    banned: IntArray


def clamp_divisor(value: float) -> float:
    """Clamp `value` so that dividing float32 logits by it does not overflow."""
    return min(max(value, MIN_DIVISOR), MAX_DIVISOR)


def find_score_indices(
    requests: Sequence[Request], trees: Sequence[DraftTree], vocab: int
) -> ScoreIndices:
    """Return the indices of the scores that the requests' sampling options change.

    Args:
        requests: Requests of a step.
        trees: Draft tree of each request.
        vocab: Size of the vocabulary.
    """
    sizes = [1 + len(tree) for tree in trees]
    starts = accumulate((size * vocab for size in sizes), initial=0)
    groups: tuple[list[IntArray], ...] = [], [], []  # paths, biased, banned
    biases: list[float] = []
    for start, size, request, tree in zip(starts, sizes, requests, trees, strict=False):
        bias = request.params.logit_bias
        if tree.token_ids and counts_tokens(request):
            groups[0].append(start + _on_path(tree, vocab))
        if bias:
            groups[1].append(start + _cross(range(size), list(bias), vocab))
            biases += [*bias.values()] * size
        if bans_tokens(request):
            groups[2].append(start + _banned(request, tree, vocab))
    owner, penalties = _NO_INDICES, _NO_NUMBERS
    if any(map(counts_tokens, requests)):
        owner = np.repeat(np.arange(len(requests), dtype=np.int64), sizes)
        penalties = np.array(list(map(_penalties, requests)), dtype=np.float32)[owner].T.copy()
    paths, biased, banned = (
        np.concatenate(indices) if indices else _NO_INDICES for indices in groups
    )
    return ScoreIndices(owner, penalties, paths, biased, np.array(biases, dtype=np.float32), banned)


def _penalties(request: Request) -> tuple[float, float, float]:
    params = request.params
    return (
        clamp_divisor(params.repetition_penalty),
        params.frequency_penalty,
        params.presence_penalty,
    )


def bans_tokens(request: Request) -> bool:
    """Return whether bad_words or min_tokens may forbid tokens at the next position."""
    return bool(request.params.bad_words) or _missing(request) > 0


def counts_tokens(request: Request) -> bool:
    """Return whether the request has penalties, which require token counts."""
    params = request.params
    return bool(
        params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty
    )


def _on_path(tree: DraftTree, vocab: int) -> IntArray:
    nodes, ancestors = tree_shape(tuple(tree.parents))[1].nonzero()
    indices: IntArray = (nodes + 1) * vocab + np.array(tree.token_ids, dtype=np.int64)[ancestors]
    return indices


def _banned(request: Request, tree: DraftTree, vocab: int) -> IntArray:
    """Return the indices of tokens that complete a bad word or end the text too early."""
    output = request.output_ids if request.params.bad_words else []
    banned = []
    for word in request.params.bad_words:
        *before, last = map(int, word)
        rows: Sequence[int] = range(1 + len(tree))
        if before:
            rows = [row for row in rows if _ends_with(output, tree, row - 1, before)]
        banned.append(_cross(rows, [last], vocab))
    missing = _missing(request)
    if missing > 0:
        depths = (0, *node_depths(tree.parents).tolist())
        early = [row for row, depth in enumerate(depths) if depth < missing]
        ends = [token for token in request.eos_token_ids if token < vocab]
        banned.append(_cross(early, ends, vocab))
    return np.concatenate([np.empty(0, dtype=np.int64), *banned])


def _missing(request: Request) -> int:
    """Return how many more tokens min_tokens requires before the text may end."""
    return request.params.min_tokens - (len(request) - request.prompt_length)


def _cross(rows: Sequence[int], tokens: Any, vocab: int) -> IntArray:
    """Return the flat index of each given token in each given row."""
    rows_array = np.array(rows, dtype=np.int64)
    return (rows_array[:, None] * vocab + np.array(tokens, dtype=np.int64)).reshape(-1)


def _ends_with(output: list[int], tree: DraftTree, node: int, tokens: list[int]) -> bool:
    """Return whether the answer, extended by the path to `node`, ends with `tokens`."""
    left = len(tokens)
    while left and node >= 0:
        if tree.token_ids[node] != tokens[left - 1]:
            return False
        left, node = left - 1, tree.parents[node]
    return left == 0 or output[-left:] == tokens[:left]
