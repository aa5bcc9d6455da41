"""Run projection modules that mix each token with a few tokens before it.

The state of such a module consists of the module's last inputs, which the cache stores. For a batch
of draft trees, `WindowMixer` builds one sequence of inputs, and calls the module's own `forward`
once, without a cache. The sequence begins with the stored inputs and the pending tokens of each
request. Then follow all tree nodes. Before each node, the sequence repeats the few tokens that
precede the node on its path.

For example, a request has the stored inputs s and t, the pending tokens a and b, and the nodes c
(after b) and d (after c). The outputs of the repeated tokens are not used:

                       ===========   =======   =======
    sequence           s  t  a  b    a  b  c   b  c  d
    outputs in use           a  b          c         d
                       ===========   =======   =======
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.backend.recurrences import FoldedStates
from paceline.core.tree import IntArray
from paceline.kv_cache.state_layer import StateLayer
from paceline.model.forward_arguments import CACHE_NAMES
from paceline.model.mixers.mixer import MixerCall, StateUpdate, own_forward
from paceline.model.mixers.recurrence_call import token_tree
from paceline.model.mixers.recurrent_batch import RecurrentBatch
from paceline.recurrence.choice import recurrences_for

_NAME = "window.0"


class WindowMixer:
    """Runs a short convolution over draft trees, starting from the stored inputs.

    Args:
        module: Copy of the module in the `ModelView`.
        forward: `forward` method of the module's class, without decorators.
    """

    folds = True

    def __init__(self, module: nn.Module, forward: FunctionType) -> None:
        self._forward = MethodType(forward, module)
        self._size: int = module.conv_kernel_size  # type: ignore[assignment]

    def __call__(
        self, hidden: Tensor, batch: RecurrentBatch, layer: StateLayer, call: MixerCall
    ) -> tuple[Any, StateUpdate]:
        """Run the convolution; return its outputs, and an update of the stored inputs.

        See `Mixer` for the arguments.
        """
        rows = hidden.flatten(0, 1)
        held = layer.store(_NAME, (self._size, rows.shape[1]), rows.dtype, rows.device)
        sequence, positions = _sequence(batch, self._size, len(rows), rows.device)
        slots = batch.tensor("slots", rows.device)
        inputs = torch.cat([held[slots].flatten(0, 1), rows])[sequence]
        results = self._forward(inputs[None], None)
        shape = hidden.shape[:2]
        outputs = tuple(result[0][positions].view(*shape, *result.shape[2:]) for result in results)
        return outputs, _Append(rows)


@dataclass(frozen=True, slots=True)
class _Append:
    """Appends the inputs of pending tokens and accepted nodes to the stored inputs.

    Attributes:
        rows: Inputs of the forward pass, [tokens, hidden].
    """

    rows: Tensor

    def commit(
        self, layer: StateLayer, batch: RecurrentBatch, accepted: Sequence[Sequence[int]]
    ) -> None:
        """Advance the stored inputs by the pending tokens and the accepted nodes."""
        path = token_tree(batch).accepted_path(accepted)
        states = FoldedStates(layer.held[_NAME], batch.tensor("slots", self.rows.device), None)
        recurrences_for(self.rows).fold_convolution(self.rows, path, states)


def window_mixer(twin: nn.Module) -> WindowMixer | None:
    """Create a `WindowMixer` for a module; return None if it is not supported.

    At the start of a text, the module pads the inputs of its convolutions with zeros. The mixer
    instead passes rows of zeros to the module as earlier inputs. The effect is the same unless a
    projection has a bias, in which case the module is not supported.

    Args:
        twin: Copy of the module in the `ModelView`.
    """
    forward = own_forward(twin)
    if forward is None or not hasattr(twin, "conv_kernel_size"):
        return None
    _, *arguments = inspect.signature(forward).parameters
    expected = [["hidden_states", cache, "conv_mask"] for cache in CACHE_NAMES]
    biased = any(
        isinstance(child, nn.Linear) and child.bias is not None for child in twin.children()
    )
    return WindowMixer(twin, forward) if arguments in expected and not biased else None


def _sequence(
    batch: RecurrentBatch, size: int, num_columns: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the module's input sequence, and the index of each column in it.

    A column is a token of the forward pass. The module docstring shows an example of a sequence.

    Args:
        batch: Tokens of the forward pass.
        size: Number of stored inputs per request.
        num_columns: Number of columns in the forward pass.
        device: Device of the results.
    Returns:
        Two int64 tensors. The first, [length], contains the source of each element of the sequence:
        an index into the list that consists of the stored inputs of all requests, followed by all
        columns. The second, [num_columns], contains the index in the sequence at which the output
        of each column is found.
    """
    key = "window", size, num_columns, device
    if key not in batch.derived:
        sources, positions = _lay_out(batch, size, num_columns)
        batch.derived[key] = (
            torch.from_numpy(sources).to(device),
            torch.from_numpy(positions).to(device),
        )
    result: tuple[Tensor, Tensor] = batch.derived[key]
    return result


def _lay_out(batch: RecurrentBatch, size: int, num_columns: int) -> tuple[IntArray, IntArray]:
    requests, width = batch.columns.shape
    stored = np.arange(requests * size, dtype=np.int64).reshape(requests, size)
    # Index `size + j` is token j of a request; smaller indices are its stored inputs.
    sources = np.concatenate([stored, requests * size + batch.columns], axis=1)
    positions = np.zeros(num_columns, dtype=np.int64)
    parts: list[IntArray] = []
    length = 0
    for row, pending in enumerate(batch.pending.tolist()):
        parts.append(sources[row, : size + pending])
        positions[batch.columns[row, :pending]] = length + size + np.arange(pending)
        length += size + pending
    offsets = np.arange(width)
    is_node = (offsets >= batch.pending[:, None]) & (
        offsets < (batch.pending + batch.nodes)[:, None]
    )
    rows, tokens = np.nonzero(is_node)
    windows = np.empty((len(rows), size + 1), dtype=np.int64)
    current = tokens
    for step in range(size, -1, -1):
        windows[:, step] = sources[rows, size + current]
        current = np.where(current >= 0, batch.parents[rows, current], current - 1)
    positions[batch.columns[rows, tokens]] = length + size + np.arange(len(rows)) * (size + 1)
    return np.concatenate([*parts, windows.ravel()]), positions
