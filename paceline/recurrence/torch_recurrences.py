"""Compute recurrences with torch operations, as the reference for compiled code.

All requests advance together, so only the longest row determines the number of operations. No
operation waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.backend.recurrences import (
    Convolution,
    FoldedStates,
    GatedTokens,
    QueryKeyValue,
    ScanTokens,
    Steps,
    StepSizes,
)
from paceline.backend.token_tree import FoldPath, TokenTree
from paceline.core.tree import BoolArray, IntArray
from paceline.recurrence.settings import NORM_EPS


class TorchRecurrences:
    """Implements `Recurrences` with torch operations, on any device."""

    def convolve(
        self, rows: Tensor, convolution: Convolution, tree: TokenTree, held: Tensor
    ) -> Tensor:
        """Compute the causal convolution over each token and its ancestors."""
        device, size = rows.device, convolution.weight.shape[1]
        columns = tree.on("columns", tree.columns, device)
        slots = tree.on("slots", tree.slots, device)
        inputs = torch.cat((held[slots].to(rows.dtype), rows[columns]), dim=1)
        if ("taps", size) not in tree.derived:
            tree.derived["taps", size] = _taps(tree, size)
        taps = tree.on(f"taps {size}", tree.derived["taps", size], device)
        requests = torch.arange(len(slots), device=device)[:, None]
        dtype = torch.promote_types(rows.dtype, torch.float32)
        total = torch.zeros((), dtype=dtype, device=device)
        if convolution.bias is not None:
            total = convolution.bias.to(dtype)
        for index in range(size):
            weight = convolution.weight[:, index].to(dtype)
            total = total + inputs[requests, taps[..., index]].to(dtype) * weight
        if convolution.activation == "silu":
            total = functional.silu(total)
        return _scatter(total.to(rows.dtype), tree, len(rows))

    def fold_convolution(self, rows: Tensor, path: FoldPath, states: FoldedStates) -> None:
        """Append the inputs of the tokens on each request's path to its stored inputs."""
        held, slots, _ = states
        size, counts = held.shape[1], np.diff(path.starts)
        before = _before(states)
        columns, _ = _path_rows(path)
        index = np.arange(size) + counts[:, None]
        inputs = torch.cat((before, rows[_on(columns, rows.device)].to(held.dtype)), dim=1)
        requests = torch.arange(len(slots), device=rows.device)[:, None]
        held[slots] = inputs[requests, _on(index, rows.device)]

    def delta_tokens(
        self, states: QueryKeyValue, log_decay: Tensor, gain: Tensor, normalised: bool
    ) -> GatedTokens:
        """Return the inputs of `walk` for a layer that uses the gated delta rule."""
        dtype = torch.promote_types(states[0].dtype, torch.float32)
        query, key = (rows.to(dtype) for rows in states[:2])
        if normalised:
            query, key = (_normalise(rows) for rows in (query, key))
        decay = log_decay.to(dtype).exp()
        if decay.dim() == 2:
            decay = decay[..., None]
        query = query * query.shape[-1] ** -0.5
        return GatedTokens(query, key, decay, states[2], gain.to(dtype), None, is_delta=True)

    def space_tokens(
        self, states: QueryKeyValue, time: StepSizes, rate: Tensor, skip: Tensor | None
    ) -> GatedTokens:
        """Return the inputs of `walk` for a layer with one decay rate per head."""
        dtype = torch.promote_types(states[0].dtype, torch.float32)
        query, key = (rows.to(dtype) for rows in states[:2])
        steps = time.numbers.to(dtype)
        if time.bias is not None:
            steps = steps + time.bias.to(dtype)
        steps = functional.softplus(steps)
        within = steps.clamp(*time.limits)
        steps = torch.where(time.limited[:, None], within, steps)
        decay = (steps * rate.to(dtype)).exp()[..., None]
        skip = None if skip is None else skip.to(dtype)
        return GatedTokens(query, key, decay, states[2], steps, skip, is_delta=False)

    def walk(self, tokens: GatedTokens, tree: TokenTree, held: Tensor, wants_after: bool) -> Steps:
        """Run a gated recurrence along the tree, starting from the stored states."""
        dtype, heads = tokens.key.dtype, tokens.value.shape[1]
        times = heads // tokens.key.shape[1]
        rows, lanes = tokens.key.shape[2], tokens.value.shape[2]
        value = tokens.value.to(dtype)
        output = value.new_zeros(len(tree.slots), tree.width, heads, lanes)
        updates = torch.zeros_like(output)
        walk = _Walk(tree, held[..., :rows, :lanes].to(dtype), wants_after)
        for token, columns, state in walk:
            query, key = (
                x[columns].repeat_interleave(times, dim=1) for x in (tokens.query, tokens.key)
            )
            state = state * tokens.decay[columns][..., None]
            update = value[columns]
            if tokens.is_delta:
                update = update - (state * key[..., None]).sum(-2)
            update = update * tokens.gain[columns][..., None]
            state = state + key[..., None] * update[:, :, None]
            output[:, token] = (state * query[..., None]).sum(-2)
            if tokens.skip is not None:
                output[:, token] += tokens.skip[:, None] * value[columns]
            updates[:, token] = update
            walk.keep(token, state)
        output, updates = (_scatter(numbers, tree, len(value)) for numbers in (output, updates))
        after = _filled(walk.after, held) if wants_after else None
        return Steps(output.to(tokens.value.dtype), updates, after)

    def fold(self, tokens: GatedTokens, path: FoldPath, states: FoldedStates) -> None:
        """Advance each request's stored states over the tokens of its path."""
        held, slots, _ = states
        updates = tokens.value
        rows, lanes = tokens.key.shape[2], updates.shape[2]
        times = updates.shape[1] // tokens.key.shape[1]
        state = _before(states)[..., :rows, :lanes].to(updates.dtype)
        for columns, is_token in _path_steps(path, updates.device):
            key = tokens.key[columns].repeat_interleave(times, dim=1)
            stepped = state * tokens.decay[columns][..., None]
            stepped = stepped + key[..., None] * updates[columns][:, :, None]
            state = torch.where(is_token[:, None, None, None], stepped, state)
        held[slots, :, :rows, :lanes] = state.to(held.dtype)

    def scan(self, tokens: ScanTokens, tree: TokenTree, held: Tensor, wants_after: bool) -> Steps:
        """Run a selective scan along the tree, starting from the stored states."""
        dtype, channels = tokens.step.dtype, tokens.step.shape[1]
        value = tokens.value.to(dtype)
        output = value.new_zeros(len(tree.slots), tree.width, channels)
        updates = torch.zeros_like(output)
        walk = _Walk(tree, held[..., :channels].to(dtype), wants_after)
        for token, columns, state in walk:
            step, key, query = (x[columns] for x in (tokens.step, tokens.key, tokens.query))
            update = step * value[columns]
            state = state * (step[:, None] * tokens.rate).exp() + key[..., None] * update[:, None]
            output[:, token] = (state * query[..., None]).sum(1)
            updates[:, token] = update
            walk.keep(token, state)
        output, updates = (_scatter(numbers, tree, len(value)) for numbers in (output, updates))
        return Steps(output, updates, _filled(walk.after, held) if wants_after else None)

    def fold_scan(self, tokens: ScanTokens, path: FoldPath, states: FoldedStates) -> None:
        """Advance each request's stored scan states over the tokens of its path."""
        held, slots, _ = states
        updates = tokens.value
        channels = updates.shape[1]
        state = _before(states)[..., :channels].to(updates.dtype)
        for columns, is_token in _path_steps(path, updates.device):
            decay = (tokens.step[columns][:, None] * tokens.rate).exp()
            stepped = state * decay + tokens.key[columns][..., None] * updates[columns][:, None]
            state = torch.where(is_token[:, None, None], stepped, state)
        held[slots, :, :channels] = state.to(held.dtype)


TORCH_RECURRENCES = TorchRecurrences()


class _Walk:
    """Iterates over the tokens of all requests, and stores states for later tokens.

    Args:
        tree: Tokens of the forward pass.
        held: Stored states of all slots, [slots, ...].
        wants_after: Whether `after` records each request's state after its last pending token.
    Attributes:
        after: Each request's state after its last pending token, [requests, ...], if `wants_after`.
    """

    def __init__(self, tree: TokenTree, held: Tensor, wants_after: bool) -> None:
        order, device = tree.order(), held.device
        self._columns = tree.on("columns", tree.columns, device)
        # State 0 is the stored state. Padding writes to the last state, which no token reads.
        targets = np.where(tree.is_padding(), order.num_states + 1, order.targets + 1)
        self._sources = tree.on("sources", order.sources + 1, device)
        self._targets = tree.on("targets", targets, device)
        self._last = tree.on("pending", tree.pending - 1, device)
        start = held[tree.on("slots", tree.slots, device)]
        self._requests = torch.arange(len(start), device=device)
        self._states = start.new_zeros(len(start), order.num_states + 2, *start.shape[1:])
        self._states[:, 0] = start
        self._wants_after = wants_after
        self.after = start

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield each token's index in its row, its column, and the state before the token.

        Columns are indices in the forward pass, [requests]; states are [requests, ...].
        """
        for token in range(self._columns.shape[1]):
            before = self._states[self._requests, self._sources[:, token]]
            yield token, self._columns[:, token], before

    def keep(self, token: int, states: Tensor) -> None:
        """Store the states after a token, which later tokens read.

        Args:
            token: Index of the token in each request's row.
            states: State of each request after this token, [requests, ...].
        """
        self._states[self._requests, self._targets[:, token]] = states
        if self._wants_after:
            is_last = (self._last == token).view(-1, *[1] * (states.dim() - 1))
            self.after = torch.where(is_last, states, self.after)


def _before(states: FoldedStates) -> Tensor:
    """Return each request's state before the first token of its path, [requests, ...]."""
    return states.held[states.slots] if states.start is None else states.start


class _PathRows(NamedTuple):
    """The paths of all requests, padded to the same length [requests, longest path].

    `columns` contains each token's index in the forward pass. `is_token` is False for padding.
    """

    columns: IntArray
    is_token: BoolArray


def _path_rows(path: FoldPath) -> _PathRows:
    counts = np.diff(path.starts)
    offsets = np.arange(int(counts.max()))
    is_token = offsets < counts[:, None]
    columns = np.zeros(is_token.shape, dtype=np.int64)
    columns[is_token] = path.columns
    return _PathRows(columns, is_token)


def _path_steps(path: FoldPath, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each path's first token, then each path's second token, and so on.

    Each item is two tensors [requests]: the tokens' columns, and whether each path is that long.
    """
    columns, is_token = (_on(array, device) for array in _path_rows(path))
    for step in range(columns.shape[1]):
        yield columns[:, step], is_token[:, step]


def _taps(tree: TokenTree, size: int) -> IntArray:
    """Return the indices of the `size` inputs that a convolution reads per token.

    A convolution reads a token's input and the size - 1 inputs before it on the path. The stored
    inputs have the indices 0 to size - 2, and token i of a request has the index size - 1 + i. The
    result, [requests, width, size], lists each token's indices from the oldest input to the newest.
    """
    # Token i follows the input with index parents[i] + size - 1. A stored input follows the
    # previous stored input.
    held = np.broadcast_to(np.arange(size - 1) - 1, (len(tree.slots), size - 1))
    parents = np.concatenate((held, tree.parents + size - 1), axis=1)
    taps = np.empty((*tree.parents.shape, size), dtype=np.int64)
    taps[..., size - 1] = np.arange(tree.width) + size - 1
    for index in range(size - 2, -1, -1):
        taps[..., index] = np.take_along_axis(parents, taps[..., index + 1], axis=1)
    return taps


def _scatter(numbers: Tensor, tree: TokenTree, count: int) -> Tensor:
    """Rearrange values from a row per request to a row per token of the forward pass.

    Args:
        numbers: Values of the tokens, [requests, width, ...].
        tree: Tokens of the forward pass. The result is zero for tokens outside the tree.
        count: Number of tokens in the forward pass.
    """
    columns = np.where(tree.is_padding(), count, tree.columns)
    index = tree.on(f"targets of {count}", columns, numbers.device)
    flat = numbers.new_zeros(count + 1, *numbers.shape[2:])
    flat[index] = numbers
    return flat[:count]


def _filled(states: Tensor, held: Tensor) -> Tensor:
    """Pad states with zeros to the shape and dtype of the stored states."""
    full = held.new_zeros(len(states), *held.shape[1:])
    full[tuple(slice(size) for size in states.shape)] = states.to(held.dtype)
    return full


def _normalise(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + NORM_EPS)


def _on(array: IntArray | BoolArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
