"""Make token trees and inputs of recurrences for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.backend.recurrences import (
    Convolution,
    FoldedStates,
    Recurrences,
    ScanTokens,
    StepSizes,
)
from paceline.backend.token_tree import TokenTree
from paceline.core.tree import IntArray

HEADS, GROUPS, ROWS, LANES, CHANNELS, SIZE = 4, 2, 16, 40, 24, 4
SLOTS = 5


def token_tree(
    pending: Sequence[int], parents: Sequence[Sequence[int]], slots: Sequence[int]
) -> TokenTree:
    """Return the tokens of requests with pending tokens and draft trees, in shuffled columns.

    Args:
        pending: Number of pending tokens of each request.
        parents: Parent of each node, for each request; -1 = a root.
        slots: Slot of each request.
    """
    counts = np.array([count + len(nodes) for count, nodes in zip(pending, parents, strict=True)])
    width = int(counts.max())
    columns = np.zeros((len(pending), width), dtype=np.int64)
    before = np.zeros((len(pending), width), dtype=np.int64)
    shuffled = np.random.default_rng(0).permutation(
        int(counts.sum()) + 3
    )  # three columns without a token
    first = 0
    for row, (count, nodes) in enumerate(zip(pending, parents, strict=True)):
        columns[row] = shuffled[first + count - 1]
        columns[row, : counts[row]] = shuffled[first : first + counts[row]]
        before[row] = count - 1
        before[row, :count] = np.arange(count) - 1
        before[row, count : counts[row]] = count + np.array(nodes, dtype=np.int64)
        first += counts[row]
    return TokenTree(
        np.array(slots, dtype=np.int64),
        np.array(pending, dtype=np.int64),
        counts - np.array(pending, dtype=np.int64),
        columns,
        before,
        np.zeros(len(pending), dtype=np.int64),
    )


def chain(columns: IntArray, slot: int) -> TokenTree:
    """Return a tree of one request whose pending tokens have the given columns."""
    count = len(columns)
    return TokenTree(
        np.array([slot], dtype=np.int64),
        np.array([count], dtype=np.int64),
        np.array([0], dtype=np.int64),
        np.ascontiguousarray(columns[None]),
        np.arange(count)[None] - 1,
        np.array([0], dtype=np.int64),
    )


def path_to(tree: TokenTree, request: int, token: int) -> list[int]:
    """Return the tokens of a request up to `token`, by index within the row."""
    path = []
    while token >= 0:
        path.append(token)
        token = int(tree.parents[request, token])
    return path[::-1]


TREE = token_tree(
    [1, 5, 2],
    [[-1, 0, 0, 1, -1, 4, 2], [], [-1, -1, 0, 1, 2]],
    [3, 0, 4],
)


@dataclass(frozen=True, slots=True)
class Case:
    """One recurrence with inputs.

    Attributes:
        held: Held states, [slots, ...].
        run: Function of recurrences, a tree and held states: outputs [tokens, ...], states after
            the pending tokens [requests, ...], and a function that folds a path.
    """

    held: Tensor
    run: Callable[..., tuple[Tensor, Tensor, Callable[..., None]]]


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normally distributed numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gated_case(kind: str, tokens: int, dtype: torch.dtype) -> Case:
    """Return a gated recurrence: "delta", "delta per row" or "space"."""
    groups = HEADS if kind == "delta per row" else GROUPS
    query, key = (numbers(tokens, groups, ROWS, seed=s, dtype=dtype) for s in (1, 2))
    value = numbers(tokens, HEADS, LANES, seed=3, dtype=dtype)
    per_row = (ROWS,) if kind == "delta per row" else ()
    log_decay = -numbers(tokens, HEADS, *per_row, seed=4).abs()
    gain = numbers(tokens, HEADS, seed=5, dtype=dtype).sigmoid()

    def run(recurrences: Recurrences, tree: TokenTree, held: Tensor) -> Any:
        if kind == "space":
            time = StepSizes(
                gain, numbers(HEADS, seed=6), (0.9, 1.1), torch.arange(tokens) % 3 == 0
            )
            rate, skip = -numbers(HEADS, seed=7).abs(), numbers(HEADS, seed=8)
            inputs = recurrences.space_tokens((query, key, value), time, rate, skip)
        else:
            inputs = recurrences.delta_tokens((query, key, value), log_decay, gain, True)
        steps = recurrences.walk(inputs, tree, held, True)

        def fold(path: Any, states: Tensor, slots: Tensor, start: Tensor | None) -> None:
            added = inputs._replace(value=steps.updates)
            recurrences.fold(added, path, FoldedStates(states, slots, start))

        return steps.output, steps.after, fold

    held = numbers(SLOTS, HEADS, ROWS, LANES, seed=9)
    return Case(torch.nn.functional.pad(held, (0, -LANES % 16)), run)


def scan_case(tokens: int, dtype: torch.dtype) -> Case:
    """Return a selective scan."""
    value = numbers(tokens, CHANNELS, seed=1, dtype=dtype)
    inputs = ScanTokens(
        value,
        numbers(tokens, CHANNELS, seed=2).abs(),
        -numbers(5, CHANNELS, seed=3).abs(),
        numbers(tokens, 5, seed=4),
        numbers(tokens, 5, seed=5),
    )

    def run(recurrences: Recurrences, tree: TokenTree, held: Tensor) -> Any:
        steps = recurrences.scan(inputs, tree, held, True)

        def fold(path: Any, states: Tensor, slots: Tensor, start: Tensor | None) -> None:
            added = inputs._replace(value=steps.updates)
            recurrences.fold_scan(added, path, FoldedStates(states, slots, start))

        return steps.output, steps.after, fold

    held = numbers(SLOTS, 5, CHANNELS, seed=9)
    return Case(torch.nn.functional.pad(held, (0, -CHANNELS % 16)), run)


def convolution_case(tokens: int, dtype: torch.dtype) -> Case:
    """Return a causal convolution."""
    rows = numbers(tokens, CHANNELS + 3, seed=1, dtype=dtype)[:, 2 : CHANNELS + 2]
    weight, bias = numbers(CHANNELS, SIZE, seed=2, dtype=dtype), numbers(CHANNELS, seed=3)
    convolution = Convolution(weight, bias, "silu")

    def run(recurrences: Recurrences, tree: TokenTree, held: Tensor) -> Any:
        output = recurrences.convolve(rows, convolution, tree, held)
        slots, after = torch.arange(len(tree.slots)), held[torch.from_numpy(tree.slots)]
        empty: list[list[int]] = [[] for _ in tree.slots]
        recurrences.fold_convolution(
            rows, tree.accepted_path(empty), FoldedStates(after, slots, None)
        )

        def fold(path: Any, states: Tensor, slots: Tensor, start: Tensor | None) -> None:
            recurrences.fold_convolution(rows, path, FoldedStates(states, slots, start))

        return output, after, fold

    return Case(numbers(SLOTS, SIZE - 1, CHANNELS, seed=9, dtype=dtype), run)


def case_of(kind: str, tokens: int, dtype: torch.dtype) -> Case:
    """Return the inputs of one of `KINDS`."""
    if kind == "scan":
        return scan_case(tokens, dtype)
    if kind == "convolution":
        return convolution_case(tokens, dtype)
    return gated_case(kind, tokens, dtype)


KINDS = ("convolution", "delta", "delta per row", "space", "scan")
