"""Define the operations of a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor, nn

from paceline.core.tree import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.backend.attention_metadata import AttentionMetadata
    from paceline.backend.packed_weight import PackedWeight

RowMover = Callable[[IntArray, IntArray, IntArray], None]
"""Copies cache positions within slots: slots [rows], source and target [rows, m].

Both are ascending, and no target comes after its source.
"""


class ScoreOptions(NamedTuple):
    """Options for attention scores.

    Attributes:
        scaling: Factor by which scores are multiplied; default 1 / sqrt(dim).
        softcap: Soft limit on the scores, cap * tanh(score / cap); None for no limit.
        sinks: One extra score per head, [heads], that enters the softmax but has no value vector.
    """

    scaling: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


class Backend(Protocol):
    """Operations on tensors of one device."""

    def linear(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows @ weight.T + bias.

        Args:
            rows: [..., inner].
            weight: [outer, inner]; one that `takes_weight`.
            bias: [outer]; None for none.
        """

    def takes_weight(self, weight: Tensor) -> bool:
        """Return True if `linear` takes a weight [outer, inner]."""

    def unpack(self, weight: PackedWeight, row_ids: Tensor | None) -> Tensor:
        """Return rows of a packed weight as bfloat16 [n, inner].

        Args:
            weight: Packed weight [outer, inner].
            row_ids: int64 [n]; None for all rows.
        Raises:
            IndexError: A row id is out of range.
        """

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return weight * rows / sqrt(mean(rows ** 2) + eps), the mean over the last axis.

        Args:
            rows: [..., size].
            weight: [size].
            eps: Addend of the mean.
        """

    def rms_norms(self, model: PreTrainedModel) -> dict[nn.Module, float]:
        """Return the modules that `rms_norm` may replace, and their eps."""

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        metadata: AttentionMetadata,
        options: ScoreOptions = ScoreOptions(),
    ) -> Tensor:
        """Compute attention by position; queries that see no keys get zeros.

        Args:
            query: [rows, heads, columns, dim]; of a packed batch [1, heads, columns of all rows,
                dim].
            key: [rows, key heads, positions, dim].
            value: [rows, key heads, positions, value dim].
            mask: bool [rows or 1, 1, columns, positions]. None: a single query sees all keys of
                its row, and of several queries each sees the keys up to its own.
            metadata: Keys of each row by position.
            options: Options of the scores.
        Returns:
            [rows, columns, heads, value dim], in the dtype of the query.
        """

    def argmax(self, logits: Tensor) -> Tensor:
        """Return each row's most likely token; NO_TOKEN for logits that are not numbers.

        Args:
            logits: [..., vocab].
        """

    def topk(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the most likely tokens of each row and their probabilities, in order.

        If a row's logits are not numbers, the tokens are arbitrary and the probabilities are 0.

        Args:
            logits: [..., vocab].
            count: Number of tokens per row.
        Returns:
            Token ids, int64 [..., count], and probabilities, float32 [..., count], on the device
            of the logits.
        """

    def entropies(self, logits: Tensor) -> Tensor:
        """Return the entropy of the distribution of each row, float32 [...], in nats.

        Args:
            logits: [..., vocab], without NaN.
        """

    def row_mover(self, blocks: Sequence[Tensor]) -> RowMover:
        """Return a function that moves cache positions in all stores at once.

        Args:
            blocks: Keys and values of all layers, [stores, slots, heads, capacity, dim] each. They
                must exist as long as the function is used.
        """

    def thread_team(self, num_helpers: int) -> AbstractContextManager[None]:
        """Return a context in which helper threads share the operations of this thread.

        Args:
            num_helpers: Number of helper threads; 0 for none.
        """
