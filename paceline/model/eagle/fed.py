"""What the LM head and layers of a model are fed in a forward, found by hooks that are held for
it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.node_logits import NodeLogits
from paceline.model.eagle.layers import decoder_layers, decoder_of, inputs_of

_Pick = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class CapturedStates:
    """What was fed, call by call.

    Attributes:
        head: what the LM head got, [rows, columns, hidden], of some of the columns. below: of each
            layer asked for, what it got.
        last: what the decoder made, as `below` of all columns; empty where nobody asked.
    """

    head: list[Tensor]
    below: list[list[Tensor]]
    last: list[Tensor]

    def with_states(
        self,
        logits: NodeLogits,
        picks: Sequence[_Pick],
        asked: Sequence[_Pick],
        pending: Sequence[list[tuple[int, int, int]]],
    ) -> NodeLogits:
        """Return logits with the states they were made of; the others are as in `ModelRunner`."""
        rows = [torch.cat([pick(one) for pick, one in zip(picks, self.head, strict=True)])]
        rows += [
            torch.cat([pick(one) for pick, one in zip(asked, kept, strict=True)])
            for kept in self.below
        ]
        states = torch.stack([one[: len(logits.flat)] for one in rows], dim=1)
        before = [
            torch.stack([one[row, first:last] for one in ones], dim=1)
            for spans, *ones in zip(pending, self.last, *self.below, strict=bool(self.last))
            for row, first, last in spans
        ]
        return replace(logits, states=states, pending=before if self.last else None)


@contextmanager
def capture_states(
    model: PreTrainedModel, layers: tuple[int, ...], last: bool
) -> Iterator[CapturedStates]:
    """Collect what the LM head and some layers are fed in the forward inside, of this thread alone:
    others may share the model.

    Args:
        layers: of the decoder. last: what the decoder makes is wanted as well.
    """
    made: list[Tensor] = []
    head = model.get_output_embeddings() or torch.nn.Identity()
    modules = [head, *decoder_layers(model, layers)]
    hook = (
        decoder_of(model).register_forward_hook(partial(_keep_last, get_ident(), made))
        if last
        else None
    )
    try:
        with inputs_of(modules) as (fed, *below):
            yield CapturedStates(fed, below, made)
    finally:
        if hook is not None:
            hook.remove()


def _keep_last(thread: int, made: list[Tensor], _: Any, inputs: Any, output: Any) -> None:
    """Keep what a decoder returns, as a hook of it."""
    if get_ident() == thread:
        made.append(output.last_hidden_state)
