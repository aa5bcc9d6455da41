"""Describe decoder layers and their forward passes to backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from paceline.backend.attention_metadata import AttentionMetadata


class DecoderLayer(NamedTuple):
    """A decoder layer that a backend can compute in a single call.

        hidden = states + o(attention(rotary(q(norm(states))), rotary(k(...)), v(...)))
        output = hidden + down(activation(gate(norm(hidden))) * up(norm(hidden)))

    Attributes:
        norms: RMS norms before attention and before the feed-forward network. Two further norms,
            as in Qwen3, normalise each query head and each key head before the rotary embedding.
        epsilons: Numbers that the norms add to the mean of the squares.
        products: Modules q, k, v, o, gate, up and down, in this order. If only the first four are
            given, the backend computes `hidden`, and the caller computes the rest of the layer, for
            example a mixture of experts.
        activation: Activation function, applied to each number separately.
        head_dim: Size of a head.
        scaling: Factor applied to the attention scores.
    """

    norms: tuple[Any, ...]
    epsilons: tuple[float, ...]
    products: tuple[Any, ...]
    activation: Any
    head_dim: int
    scaling: float


@dataclass(frozen=True, slots=True)
class LayerPass:
    """The inputs of a forward pass that are the same for all layers.

    Attributes:
        angles: Cosines and sines of the rotary embedding, [1, columns, head dim] each.
        mask: Attention mask of the pass, or None.
        metadata: Keys of each row, ordered by text position.
        columns: Number of columns.
        written: Where the pass writes new keys and values, int64 [key heads * columns]. The numbers
            are row indices, if each tensor in `stores` is viewed in the shape [slots * key heads *
            positions, head dim].
        seen: First slot and first cache position that attention reads.
        stores: Keys and values of each layer, [slots, key heads, positions, head dim].
    """

    angles: tuple[Tensor, Tensor]
    mask: Tensor | None
    metadata: AttentionMetadata
    columns: int
    written: Tensor
    seen: tuple[int, int]
    stores: Sequence[tuple[Tensor, Tensor]]


class DecoderLayers(Protocol):
    """Computes the decoder layers of one model, separately or all in one call."""

    def takes_rows(self, count: int) -> bool:
        """Return whether a forward pass over `count` rows should use this object."""

    def has_same_weights(self) -> bool:
        """Return whether the layers still have the weights that this object reads."""

    def begin(self, current: LayerPass) -> None:
        """Set the inputs of the next forward pass."""

    def run(self, index: int, states: Tensor) -> Tensor:
        """Return the output of a layer, after writing its keys and values to the cache.

        Args:
            index: Index of the layer.
            states: Hidden states, contiguous [1, columns, hidden].
        """

    def run_all(self, states: Tensor) -> Tensor:
        """Run all layers on the first layer's input; return the last layer's output."""
