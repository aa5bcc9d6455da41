"""Capture the hidden states read by a model's LM head and by some layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.node_logits import NodeLogits
from paceline.model.eagle.layers import decoder_layers, decoder_of, inputs_of

_Pick = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class CapturedStates:
    """Hidden states captured from the module calls in one forward pass.

    A forward pass may call the model several times. Each list of tensors has one tensor per call.

    Attributes:
        head: Inputs to the LM head for the columns (tokens) whose logits are computed, [rows,
            columns, hidden].
        below: For each captured layer, the inputs to the layer for all columns.
        last: Outputs of the decoder for all columns; empty if the outputs were not captured.
    """

    head: list[Tensor]
    below: list[list[Tensor]]
    last: list[Tensor]

    def with_states(
        self,
        logits: NodeLogits,
        head_picks: Sequence[_Pick],
        column_picks: Sequence[_Pick],
        pending: Sequence[list[tuple[int, int, int]]],
    ) -> NodeLogits:
        """Add the captured hidden states to the logits of the forward pass.

        Args:
            logits: Logits of the forward pass.
            head_picks: For each call of the model, a function that takes a tensor of `head` and
                selects the states of the tokens with logits (`ModelRunner.picks`).
            column_picks: For each call of the model, a function that takes a tensor of `below` and
                selects the states of the same tokens (`ModelRunner.column_picks`).
            pending: For each call of the model, the rows and ranges of columns that hold pending
                tokens (`ModelRunner.pending`).
        """
        count = len(logits.flat)
        states = _picked(head_picks, self.head)[:count, None]
        if self.below:
            rows = [states[:, 0], *(_picked(column_picks, layer)[:count] for layer in self.below)]
            states = torch.stack(rows, dim=1)
        before = [
            torch.stack([level[row, first:last] for level in levels], dim=1)
            for spans, *levels in zip(pending, self.last, *self.below, strict=bool(self.last))
            for row, first, last in spans
        ]
        return replace(logits, states=states, pending=before if self.last else None)


def _picked(picks: Sequence[_Pick], calls: Sequence[Tensor]) -> Tensor:
    """Select rows from each call's tensor, and join the rows of all calls."""
    rows = [pick(states) for pick, states in zip(picks, calls, strict=True)]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


class StateRequest(NamedTuple):
    """The hidden states to capture in a forward pass.

    Attributes:
        layers: Indices of the decoder layers whose inputs are captured.
        last: Whether to capture the decoder's output as well.
    """

    layers: tuple[int, ...] = ()
    last: bool = False


@contextmanager
def capture_states(model: PreTrainedModel, wanted: StateRequest) -> Iterator[CapturedStates]:
    """Capture hidden states of a forward pass that runs in the `with` block.

    Only calls from this thread are captured; other threads may use the model in the meantime.

    Args:
        model: Model to run.
        wanted: Hidden states to capture in addition to the inputs of the LM head.
    """
    outputs: list[Tensor] = []
    head = model.get_output_embeddings() or torch.nn.Identity()
    modules = [head, *decoder_layers(model, wanted.layers)]
    hook = None
    if wanted.last:
        hook = decoder_of(model).register_forward_hook(partial(_keep_last, get_ident(), outputs))
    try:
        with inputs_of(modules) as (inputs, *below):
            yield CapturedStates(inputs, below, outputs)
    finally:
        if hook is not None:
            hook.remove()


def _keep_last(thread: int, outputs: list[Tensor], _: Any, inputs: Any, output: Any) -> None:
    if get_ident() == thread:
        outputs.append(output.last_hidden_state)
