"""Define the interface of backends: operations that kernels may replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor, nn

from paceline.core.tree import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.backend.attention_metadata import AttentionMetadata
    from paceline.backend.decoder_layer import DecoderLayer, DecoderLayers
    from paceline.backend.packed_weight import PackedWeight

RowMover = Callable[[IntArray, IntArray, IntArray], None]
"""Copies cache positions within slots.

The arguments are the slots [rows], the source positions [rows, m] and the target positions [rows,
m]. In each row, both kinds of positions ascend, and no target comes after its source.
"""


class ScoreOptions(NamedTuple):
    """Options for attention scores.

    Attributes:
        scaling: Factor applied to the scores; default 1 / sqrt(dim).
        softcap: Soft limit on the scores, cap * tanh(score / cap); None means no limit.
        sinks: Attention sinks: one extra score per head, [heads], that enters the softmax but has
            no value vector.
        bias: Numbers added to the scaled scores before the soft cap, [batch, heads, columns, cache
            positions]; None adds nothing.
    """

    scaling: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    bias: Tensor | None = None


class ExpertProducts(Protocol):
    """Multiplies rows by the weights of their experts, with one call for all experts."""

    def reads(self, weights: Tensor) -> bool:
        """Return whether `multiply` would read these weights from their current address."""

    def can_run(self) -> bool:
        """Return whether `multiply` is efficient in this thread at the moment."""

    def multiply(self, rows: Tensor, counts: Sequence[int], biases: Tensor | None) -> Tensor:
        """Multiply each row by the weights of the row's expert.

        Args:
            rows: Rows sorted by expert, [n, inner], in the dtype of the weights.
            counts: Number of rows of each expert.
            biases: Biases, [experts, outputs], or None.
        """


class Backend(Protocol):
    """Operations that each type of device, such as CPU or CUDA, implements."""

    def linear(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows @ weight.T + bias.

        Args:
            rows: Input, [..., inner].
            weight: Weight accepted by `takes_weight`, [outer, inner]; may be a transposed view.
            bias: Bias, [outer], or None.
        """

    def takes_weight(self, weight: Tensor) -> bool:
        """Return True if `linear` supports a weight [outer, inner]."""

    def expert_products(self, weights: Tensor) -> ExpertProducts | None:
        """Return an object that multiplies by all experts' weights; None if unsupported.

        Args:
            weights: Weights, [experts, outputs, inner].
        """

    def unpack(self, weight: PackedWeight, row_ids: Tensor | None) -> Tensor:
        """Return rows of a packed weight as bfloat16 [n, inner].

        Args:
            weight: Packed weight [outer, inner].
            row_ids: Rows to return, int64 [n]; None means all rows.
        Raises:
            IndexError: A row id is out of range.
        """

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return weight * rows / sqrt(mean(rows ** 2) + eps), over the last axis.

        Args:
            rows: Input, [..., size].
            weight: Weight, [size].
            eps: Number added to the mean.
        """

    def rms_norms(self, model: PreTrainedModel) -> dict[nn.Module, float]:
        """Return the norm modules that `rms_norm` may replace, with the epsilon of each."""

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        metadata: AttentionMetadata,
        options: ScoreOptions = ScoreOptions(),
    ) -> Tensor:
        """Compute attention, summing over the keys in text order.

        The output of a query that sees no keys is zero.

        Args:
            query: Queries, [rows, heads, columns, dim]; in a packed batch, [1, heads, columns of
                all rows, dim].
            key: Keys, [rows, key heads, positions, dim].
            value: Values, [rows, key heads, positions, value dim].
            mask: Boolean mask, [rows or 1, 1, columns, positions]. With None, attention is causal
                if there are several columns; a single column sees all keys of its row.
            metadata: Keys of each row, ordered by text position.
            options: Options for the attention scores.
        Returns:
            Output, [rows, columns, heads, value dim], in the dtype of the query.
        """

    def decoder_layers(self, layers: Sequence[DecoderLayer]) -> DecoderLayers | None:
        """Return an object that computes each layer in one call; None if unsupported.

        Args:
            layers: Layers whose products and norms this backend computes.
        """

    def argmax(self, logits: Tensor) -> Tensor:
        """Return each row's most likely token; NO_TOKEN if logits are NaN or infinite.

        Args:
            logits: Logits, [..., vocab].
        """

    def topk(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return each row's most likely tokens in order, with their probabilities.

        If a row's logits are NaN or infinite, its tokens are arbitrary and its probabilities are
        0.

        Args:
            logits: Logits, [..., vocab].
            count: Number of tokens per row.
        Returns:
            Token ids, int64 [..., count], and probabilities, float32 [..., count], on the device
            of the logits.
        """

    def entropies(self, logits: Tensor) -> Tensor:
        """Return the entropy of each row's distribution in nats, float32 [...].

        Args:
            logits: Logits, [..., vocab], without NaN.
        """

    def row_mover(self, blocks: Sequence[Tensor]) -> RowMover:
        """Return a function that moves cache positions within slots, in all layers.

        Args:
            blocks: Keys and values of all layers. Each block contains several key or value tensors,
                [tensors, slots, heads, capacity, dim]. The blocks must stay allocated as long as
                the returned function is in use.
        """

    def thread_team(self, num_helpers: int | None) -> AbstractContextManager[None]:
        """Return a context in which helper threads share this thread's operations.

        Args:
            num_helpers: Number of helper threads. 0 means that this thread works alone. None means
                that each operation may wake other threads.
        """
