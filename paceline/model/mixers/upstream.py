"""Run a recurrent mixer's own `forward` over pending tokens and tree branches."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.tree import BoolArray, IntArray
from paceline.kv_cache.state_layer import StateLayer
from paceline.model.mixers.mixer import MixerCall, StateUpdate
from paceline.model.mixers.recurrent_batch import RecurrentBatch
from paceline.model.mixers.settings import MAX_SHORT_COLUMNS, SHORT_CHUNK


@dataclass(frozen=True, slots=True)
class _Advanced:
    """Holds the recurrent states that result from processing the pending tokens.

    Attributes:
        states: States by name, each [requests, ...].
    """

    states: dict[str, Tensor]

    def commit(
        self, layer: StateLayer, batch: RecurrentBatch, accepted: Sequence[Sequence[int]]
    ) -> None:
        """Store the states after the pending tokens in the requests' slots.

        The next forward pass processes the accepted nodes again.
        """
        first = next(iter(self.states.values()))
        layer.hold(batch.tensor("slots", first.device), self.states)


class UpstreamMixer:
    """Runs a recurrent mixer with transformers' module, using one row per tree branch.

    Requests with the same number of pending tokens share a call of the module. Each branch of a
    tree is a row that starts from the state after the pending tokens. Padding comes last in a row,
    so the padding cannot change the state of a token.

    Args:
        module: Copy of the transformers module in the `ModelView`.
    """

    folds = False

    def __init__(self, module: nn.Module) -> None:
        self._attributes: dict[str, Any] = vars(module)
        self._chunk_size = self._attributes.get("chunk_size")
        self._clamps = clamps_prompts(module)

    def __call__(
        self, hidden: Tensor, batch: RecurrentBatch, layer: StateLayer, call: MixerCall
    ) -> tuple[Tensor, StateUpdate]:
        """Run the mixer; return its outputs, and an update of the stored states.

        See `Mixer` for the arguments.
        """
        flat, device = hidden.flatten(0, 1), hidden.device
        states, results = self._advance(flat, batch, layer, call)
        rows, steps, is_token = _branches(batch)
        if len(rows):
            layer.load({name: after[_on(rows, device)] for name, after in states.items()})
            columns = batch.columns[rows[:, None], steps]
            branches = self._run(call, flat[_on(columns, device)], in_prompt=False)
            results.append((_on(columns[is_token], device), branches[_on(is_token, device)]))
        outputs = results[0][1].new_zeros(len(flat), results[0][1].shape[-1])
        for tokens, result in results:
            outputs[tokens] = result
        return outputs.view(*hidden.shape[:2], -1), _Advanced(states)

    def _advance(
        self, flat: Tensor, batch: RecurrentBatch, layer: StateLayer, call: MixerCall
    ) -> tuple[dict[str, Tensor], list[tuple[Tensor, Tensor]]]:
        """Process the pending tokens, in groups of requests with equal token counts.

        Returns:
            Two values. The first maps state names to the states after the pending tokens, each
            [requests, ...]. The second contains one pair for each call of the module: the columns
            that the call processed, [rows, columns], and their outputs, [rows, columns, hidden].
        """
        device = flat.device
        order: list[IntArray] = []
        parts: list[dict[str, Tensor]] = []
        results: list[tuple[Tensor, Tensor]] = []
        prompt = batch.prompt if self._clamps else np.zeros_like(batch.pending)
        for count, in_prompt in sorted(
            {*zip(batch.pending.tolist(), prompt.tolist(), strict=True)}
        ):
            rows = np.flatnonzero((batch.pending == count) & (prompt == in_prompt))
            layer.load(layer.rows(_on(batch.slots[rows], device)))
            for first, stop in ((0, in_prompt), (in_prompt, count)):
                if first < stop:
                    columns = _on(batch.columns[rows, first:stop], device)
                    results.append((columns, self._run(call, flat[columns], stop == in_prompt)))
            order.append(rows)
            parts.append(layer.working())
        if len(parts) == 1:
            return parts[0], results
        sorted_rows = _on(np.argsort(np.concatenate(order)), device)
        return {
            name: torch.cat([states[name] for states in parts])[sorted_rows] for name in parts[0]
        }, results

    def _run(self, call: MixerCall, hidden: Tensor, in_prompt: bool) -> Tensor:
        """Call the module with the chunk size and time-step limits that suit the tokens.

        Args:
            call: The module's `forward` method.
            hidden: Inputs, [rows, columns, hidden].
            in_prompt: Whether the columns are prompt tokens, whose time steps are limited.
        """
        changes: dict[str, Any] = {}
        if self._chunk_size is not None and hidden.shape[1] <= MAX_SHORT_COLUMNS:
            changes["chunk_size"] = min(self._chunk_size, SHORT_CHUNK)
        if self._clamps and not in_prompt:
            changes["time_step_limit"] = _NO_LIMITS
        before = {name: self._attributes[name] for name in changes}
        self._attributes.update(changes)
        try:
            return call(hidden)
        finally:
            self._attributes.update(before)


_NO_LIMITS = (0.0, math.inf)


def clamps_prompts(module: nn.Module) -> bool:
    """Return whether a recurrent mixer limits its time steps in prompts only.

    A time step is a factor that the mixer computes from each token (`dt` in Mamba). transformers
    limits time steps only in forward passes with several tokens. `generate` decodes one token at a
    time, so the limits apply only to prompts.
    """
    limits = vars(module).get("time_step_limit")
    return limits is not None and tuple(limits) != _NO_LIMITS


def ignores_states(module: nn.Module) -> bool:
    """Return whether a recurrent mixer ignores its state if given several tokens.

    This is the case for transformers' selective scan (Mamba-1), which has no argument for a state.
    """
    return "mamba_selective_scan" in inspect.unwrap(type(module).forward).__code__.co_names


def _branches(batch: RecurrentBatch) -> tuple[IntArray, IntArray, BoolArray]:
    """Return the path to every leaf of every tree.

    Returns:
        Three arrays, with one row per path. The first, [paths], contains the path's request. The
        second, [paths, longest], contains the index of each token in the request's row. The third,
        in the same shape, is True for tokens and False for padding.
    """
    paths = [
        (row, batch.pending[row] + np.array(tree.path(leaf), dtype=np.int64))
        for row, tree in enumerate(batch.trees)
        for leaf in sorted(set(range(len(tree))) - set(tree.parents))
    ]
    longest = max((len(path) for _, path in paths), default=0)
    steps = np.zeros((len(paths), longest), dtype=np.int64)
    is_token = np.zeros((len(paths), longest), dtype=np.bool_)
    for number, (_, path) in enumerate(paths):
        steps[number, : len(path)], is_token[number, : len(path)] = path, True
    return np.array([row for row, _ in paths], dtype=np.int64), steps, is_token


def _on(array: IntArray | BoolArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
