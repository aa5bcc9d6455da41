"""Compute the recurrent states of prompts with images, videos or audio."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from paceline.core.tree import DraftTree, IntArray
from paceline.kv_cache.state_layer import SlotCount, StateKind, StateLayer
from paceline.model.mixers.recurrent_batch import RecurrentBatch
from paceline.model.mixers.seam import RecurrentPass


class RecurrentPrefill:
    """Manages recurrent states in one forward pass of the model over whole prompts.

    The states cover each prompt except its last token. The model's logits for the last token are
    compared with the logits that paceline computes.

    Args:
        kinds: Kind of recurrent state in each recurrent layer, by layer index.
        num_layers: Number of decoder layers.
        first: Column of the first token of each row, [rows]; padding precedes the first token.
        columns: Number of columns of each row.
        folds: Whether every mixer adds accepted nodes to the stored states.
    Attributes:
        cache: Empty cache for the forward pass. Layers with an attention window keep all keys.
        current: Description of the forward pass, which the recurrent mixers of a `ModelView` read.
    """

    def __init__(
        self,
        kinds: Mapping[int, StateKind],
        num_layers: int,
        first: IntArray,
        columns: int,
        folds: bool,
    ) -> None:
        self._layers = {
            index: StateLayer(SlotCount(len(first)), kind.num_states)
            for index, kind in kinds.items()
        }
        self.cache = DynamicCache()
        self.cache.layers = [
            self._layers.get(index) or DynamicLayer() for index in range(num_layers)
        ]
        self.current = RecurrentPass(_prompt_batch(first, columns), self._layers, folds)

    def commit(self) -> None:
        """Advance the stored states by all but the last token of each row.

        Call this after the forward pass.
        """
        self.current.commit([[]] * self.current.num_requests)

    def states(self, row: int) -> dict[int, dict[str, Tensor]]:
        """Return the recurrent states of a row by layer index and name, each [1, ...]."""
        return {
            index: {name: states[row : row + 1] for name, states in layer.held.items()}
            for index, layer in self._layers.items()
        }


def _prompt_batch(first: IntArray, columns: int) -> RecurrentBatch:
    """Arrange prompts as the rows of a batch for recurrent layers.

    The last token of a prompt becomes a draft node, and all other tokens become pending tokens.
    Every row needs a pending token, so the token of a one-token prompt becomes a pending token.
    """
    rows = np.arange(len(first), dtype=np.int64)
    pending = np.maximum(columns - first - 1, 1)
    nodes = columns - first - pending
    count = (pending + nodes)[:, None]
    offsets = np.arange(int(count.max()), dtype=np.int64)[None]
    newest = pending[:, None] - 1
    return RecurrentBatch(
        slots=rows,
        pending=pending,
        prompt=pending,
        nodes=nodes,
        columns=(rows * columns + first)[:, None] + np.where(offsets < count, offsets, newest),
        parents=np.where(offsets < count, offsets - 1, newest),
        trees=[DraftTree.chain([0] * int(number)) for number in nodes],
    )
