"""Compute a recurrent mixer along a draft tree, and prepare its state update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.backend.activations import no_replacements
from paceline.backend.recurrences import (
    Convolution,
    FoldedStates,
    GatedTokens,
    ScanTokens,
    StepSizes,
)
from paceline.backend.token_tree import FoldPath, TokenTree
from paceline.kv_cache.state_layer import StateLayer
from paceline.model.mixers.recurrent_batch import RecurrentBatch
from paceline.model.mixers.settings import (
    ACTIVATIONS,
    LANE_MULTIPLE,
    MAX_REPLAYED_TOKENS,
    ROW_MULTIPLE,
)
from paceline.recurrence.choice import recurrences_for

Fold = Callable[[Sequence[Sequence[int]]], None]
"""Advances stored states by the pending tokens and the accepted nodes of each request."""


class RecurrenceCall:
    """Computes the recurrences of one mixer call along a draft tree.

    Each method stands in for a transformers function, with the same arguments and result. The
    order of the calls determines which of the mixer's stored states each call uses.

    Args:
        tree: Tokens of the forward pass.
        layer: Stored states of the mixer's layer.
        first: Index of the mixer's first state among the states of the layer. Default 0.
    Attributes:
        tree: Tokens of the forward pass.
        folds: Functions that advance the stored states at commit.
    """

    def __init__(self, tree: TokenTree, layer: StateLayer, first: int = 0) -> None:
        self.tree, self._layer, self._first = tree, layer, first
        self.folds: list[Fold] = []
        # A wide batch keeps the states after the pending tokens instead of these tokens.
        self._is_wide = tree.width > MAX_REPLAYED_TOKENS

    def convolve(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **_: Any,
    ) -> Tensor:
        """Return the causal convolution along the draft tree, [rows, channels, columns]."""
        rows = _flat(hidden_states.transpose(1, 2))
        recurrences, slots = recurrences_for(rows), self._slots(rows)
        name = f"convolution.{self._first + len(self.folds)}"
        held = self._held(name, (weight.shape[1] - 1, rows.shape[1]), rows)
        convolution = Convolution(weight, bias, ACTIVATIONS[activation])
        output = recurrences.convolve(rows, convolution, self.tree, held)
        start, inputs = None, rows
        if self._is_wide:
            start, inputs = held[slots], rows[self._node_columns(rows)]
            none: list[list[int]] = [[] for _ in self.tree.slots]
            states = FoldedStates(start, torch.arange(len(slots), device=rows.device), None)
            recurrences.fold_convolution(rows, self.tree.accepted_path(none), states)
        self.folds.append(
            lambda accepted: recurrences.fold_convolution(
                inputs,
                self._path(accepted),
                FoldedStates(self._layer.held[name], slots, start),
            )
        )
        return output.view(*hidden_states.transpose(1, 2).shape).transpose(1, 2)

    def delta_rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Return the output of a gated delta rule, and None for the final state.

        The shape of the output is [rows, columns, heads, value dim].
        """
        with no_replacements():  # a delta rule calls no activation function
            states = _flat(query), _flat(key), _flat(value)
            tokens = recurrences_for(states[2]).delta_tokens(
                states, _flat(g), _flat(beta), use_qk_l2norm_in_kernel
            )
            return self._walk(tokens).view(value.shape), None

    def state_space(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        **_: Any,
    ) -> Tensor:
        """Return the output of a state-space model with one decay rate per head.

        The shape of the output is [rows, columns, heads, head dim].
        """
        states = _flat(C), _flat(B), _flat(hidden_states)
        limited = self._prompt_columns(len(states[0]), dt.device)
        time = StepSizes(_flat(dt), dt_bias, dt_limit, limited)
        tokens = recurrences_for(states[2]).space_tokens(states, time, A, D)
        return self._walk(tokens).view(hidden_states.shape)

    def selective_scan(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        **_: Any,
    ) -> Tensor:
        """Return the output of a state-space model with one decay rate per channel.

        The shape of the output is [rows, channels, columns].
        """
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        step = dt.to(dtype)
        if delta_bias is not None:
            step = step + delta_bias[:, None]
        step = functional.softplus(step) if delta_softplus else step
        rows, step, key, query = (
            _flat(tensor.transpose(1, 2)) for tensor in (hidden_states, step, B, C)
        )
        rate = A.to(dtype).T.contiguous()
        tokens = ScanTokens(rows, step, rate, key.to(dtype), query.to(dtype))
        shape = hidden_states.transpose(1, 2).shape
        output = self._scan(tokens).view(shape).transpose(1, 2)
        if D is not None:
            output = output + hidden_states * D[:, None]
        return output if z is None else output * functional.silu(z)

    def _walk(self, tokens: GatedTokens) -> Tensor:
        value, slots = tokens.value, self._slots(tokens.value)
        recurrences = recurrences_for(value)
        rows, lanes = (
            -(-size // multiple) * multiple
            for size, multiple in (
                (tokens.key.shape[2], ROW_MULTIPLE),
                (value.shape[2], LANE_MULTIPLE),
            )
        )
        name = f"gated.{len(self.folds)}"
        held = self._held(name, (value.shape[1], rows, lanes), tokens.key)
        steps = recurrences.walk(tokens, self.tree, held, self._is_wide)
        key, decay, updates = self._kept(tokens.key, tokens.decay, steps.updates)
        factors = tokens._replace(query=key, key=key, decay=decay, value=updates)
        self.folds.append(
            lambda accepted: recurrences.fold(
                factors,
                self._path(accepted),
                FoldedStates(self._layer.held[name], slots, steps.after),
            )
        )
        return steps.output

    def _scan(self, tokens: ScanTokens) -> Tensor:
        recurrences, slots = recurrences_for(tokens.value), self._slots(tokens.value)
        rows, channels = tokens.rate.shape
        width = -(-channels // LANE_MULTIPLE) * LANE_MULTIPLE
        name = f"scan.{len(self.folds)}"
        held = self._held(name, (rows, width), tokens.step)
        steps = recurrences.scan(tokens, self.tree, held, self._is_wide)
        step, key, updates = self._kept(tokens.step, tokens.key, steps.updates)
        factors = ScanTokens(updates, step, tokens.rate, key, key)
        self.folds.append(
            lambda accepted: recurrences.fold_scan(
                factors,
                self._path(accepted),
                FoldedStates(self._layer.held[name], slots, steps.after),
            )
        )
        return steps.output

    def _held(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return self._layer.store(name, shape, like.dtype, like.device)

    def _slots(self, like: Tensor) -> Tensor:
        return self.tree.on("slots", self.tree.slots, like.device)

    def _kept(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Select the rows (tokens) of each tensor that the state update may read.

        In a batch with many tokens per request (`_is_wide`), only the tree nodes are selected.
        """
        if not self._is_wide:
            return tensors
        columns = self._node_columns(tensors[0])
        return tuple(tensor[columns] for tensor in tensors)

    def _node_columns(self, like: Tensor) -> Tensor:
        """Return the column of every tree node in the forward pass, request by request."""
        tree = self.tree
        is_node = ~tree.is_padding() & (np.arange(tree.width) >= tree.pending[:, None])
        return tree.on("nodes", tree.columns[is_node], like.device)

    def _path(self, accepted: Sequence[Sequence[int]]) -> FoldPath:
        """Return the tokens to commit, as indices into the rows that `_kept` returned."""
        known = self.tree.derived.get("path")
        if known is None or known[0] is not accepted:
            path = self._node_path(accepted) if self._is_wide else self.tree.accepted_path(accepted)
            known = self.tree.derived["path"] = accepted, path
        result: FoldPath = known[1]
        return result

    def _node_path(self, accepted: Sequence[Sequence[int]]) -> FoldPath:
        first = np.cumsum(self.tree.nodes) - self.tree.nodes
        return FoldPath.of(
            [
                start + np.array(nodes, dtype=np.int64)
                for start, nodes in zip(first, accepted, strict=True)
            ]
        )

    def _prompt_columns(self, count: int, device: torch.device) -> Tensor:
        """Return a mask of the columns that hold prompt tokens, bool [count]."""
        tree = self.tree
        is_prompt = np.arange(tree.width) < tree.prompt[:, None]
        flags = np.zeros(count, dtype=np.bool_)
        flags[tree.columns[is_prompt]] = True
        return tree.on(f"prompt of {count}", flags, device)


def token_tree(batch: RecurrentBatch) -> TokenTree:
    """Return a batch's tokens as a `TokenTree`, which is built once per batch."""
    if "tree" not in batch.derived:
        batch.derived["tree"] = TokenTree(
            np.ascontiguousarray(batch.slots),
            np.ascontiguousarray(batch.pending),
            np.ascontiguousarray(batch.nodes),
            np.ascontiguousarray(batch.columns),
            np.ascontiguousarray(batch.parents),
            np.ascontiguousarray(batch.prompt),
        )
    tree: TokenTree = batch.derived["tree"]
    return tree


def _flat(tensor: Tensor) -> Tensor:
    return tensor.flatten(0, 1)
