"""Implement a backend with torch operations, the reference for all kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.backend.attention_metadata import AttentionMetadata, VisibleRanges
from paceline.backend.interface import ExpertProducts, RowMover, ScoreOptions
from paceline.core.not_numbers import marked_argmax
from paceline.core.tree import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.backend.decoder_layer import DecoderLayer, DecoderLayers
    from paceline.backend.packed_weight import PackedWeight


class TorchBackend:
    """Implements `Backend` with torch's operations, on any device."""

    def linear(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows @ weight.T + bias."""
        return functional.linear(rows, weight, bias)

    def takes_weight(self, weight: Tensor) -> bool:
        """Return True, because torch can multiply by any weight."""
        return True

    def expert_products(self, weights: Tensor) -> ExpertProducts | None:
        """Return None, because torch multiplies by the weights of one expert at a time."""
        return None

    def unpack(self, weight: PackedWeight, row_ids: Tensor | None) -> Tensor:
        """Return rows of a packed weight as bfloat16 [n, inner].

        The `gguf` package unpacks the rows.
        """
        from gguf import GGMLQuantizationType, quants  # an optional package

        blocks = weight.blocks if weight.order is None else weight.blocks[weight.order]
        blocks = blocks if row_ids is None else blocks[row_ids]
        kind = GGMLQuantizationType[weight.block_format.name]
        plain = {"F32": np.float32, "F16": np.float16}.get(weight.block_format.name, np.uint8)
        numbers = quants.dequantize(blocks.numpy().view(plain), kind)
        return torch.from_numpy(np.ascontiguousarray(numbers)).bfloat16()

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return weight * rows / sqrt(mean(rows ** 2) + eps), rounded as in transformers."""
        numbers = rows.float()
        scale = torch.rsqrt(numbers.square().mean(-1, keepdim=True) + eps)
        return weight * (numbers * scale).to(rows.dtype)

    def rms_norms(self, model: PreTrainedModel) -> dict[nn.Module, float]:
        """Return no modules, because a model already uses torch's norms."""
        return {}

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        metadata: AttentionMetadata,
        options: ScoreOptions = ScoreOptions(),
    ) -> Tensor:
        """Compute attention in text order with a dense mask.

        This reference implementation is slow and uses much memory.
        """
        batch, heads, columns, dim = query.shape
        visible = metadata.visible(mask, columns)
        key, value = (_rows(states, metadata) for states in (key, value))
        rows, sees = _dense(visible, metadata, key.shape[2])
        rows, sees = rows.to(query.device), sees.to(query.device)
        queries = query.transpose(1, 2).reshape(len(rows), key.shape[1], -1, dim).float()
        scaling = 1 / math.sqrt(dim) if options.scaling is None else options.scaling
        scores = torch.einsum("nkgd,nkpd->nkgp", queries, key[rows].float()) * scaling
        if options.bias is not None:
            biases = options.bias.float().expand(batch, -1, -1, -1).transpose(1, 2)
            scores = scores + biases.reshape(scores.shape)
        if options.softcap:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        scores = scores.masked_fill(~sees[:, None, None], -math.inf)
        if options.sinks is not None:
            sinks = options.sinks.float().view(1, key.shape[1], -1, 1).expand(len(rows), -1, -1, 1)
            scores = torch.cat((scores, sinks), dim=-1)
        weights = scores.softmax(dim=-1).nan_to_num(0.0)[..., : key.shape[2]]
        output = torch.einsum("nkgp,nkpd->nkgd", weights, value[rows].float())
        return output.reshape(batch, columns, heads, -1).to(query.dtype)

    def decoder_layers(self, layers: Sequence[DecoderLayer]) -> DecoderLayers | None:
        """Return None, because the modules of a model already use torch's operations."""
        return None

    def argmax(self, logits: Tensor) -> Tensor:
        """Return each row's most likely token; NO_TOKEN if logits are NaN or infinite."""
        return marked_argmax(logits)

    def topk(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return each row's most likely tokens in order, with their probabilities."""
        token_ids = _largest_first(logits, min(count, logits.shape[-1]))
        probs: Tensor = logits.softmax(-1, dtype=torch.float32).gather(-1, token_ids)
        return token_ids, probs.nan_to_num_(0.0)

    def entropies(self, logits: Tensor) -> Tensor:
        """Return the entropy of each row's distribution in nats, float32 [...]."""
        entropies: Tensor = torch.special.entr(logits.softmax(-1, dtype=torch.float32)).sum(-1)
        return entropies

    def row_mover(self, blocks: Sequence[Tensor]) -> RowMover:
        """Return a function that moves cache positions in one block after another."""

        def move(slots: IntArray, source: IntArray, target: IntArray) -> None:
            indices: dict[tuple[int, torch.device], Tensor] = {}
            for stores in blocks:
                num_stores, _, heads, capacity, dim = stores.shape
                if (heads, stores.device) not in indices:
                    first = (slots[:, None] * heads + np.arange(heads)) * capacity
                    both = np.stack((source, target))[:, :, None] + first[..., None]
                    indices[heads, stores.device] = torch.from_numpy(both.reshape(2, -1)).to(
                        stores.device, non_blocking=True
                    )
                origin, goal = indices[heads, stores.device]
                rows = stores.view(num_stores, -1, dim)
                rows.index_copy_(1, goal, rows.index_select(1, origin))

        return move

    def thread_team(self, num_helpers: int | None) -> AbstractContextManager[None]:
        """Return a context without helper threads, because torch starts its own threads."""
        return nullcontext()


def _rows(states: Tensor, metadata: AttentionMetadata) -> Tensor:
    """Return keys or values [rows, ...], in the same row order as the queries."""
    rows = metadata.key_rows
    if states.shape[0] > int(rows.max()):
        return states[torch.from_numpy(rows)]
    # Rows begin at cache positions of one slot; see `AttentionMetadata`.
    positions = torch.from_numpy(rows)[:, None] + torch.arange(metadata.keys)
    return states[0][:, positions.clamp(max=states.shape[2] - 1)].transpose(0, 1)


def _dense(
    visible: VisibleRanges, metadata: AttentionMetadata, positions: int
) -> tuple[Tensor, Tensor]:
    """Return the row and the visible positions of each query.

    The visible positions are returned as a mask, bool [queries, positions]."""
    rows = np.repeat(np.arange(len(metadata.cached)), np.diff(visible.starts))
    sees = np.zeros((len(rows), positions), dtype=np.bool_)
    for query, row in enumerate(rows):
        for run in visible.runs[visible.begin[query] : visible.begin[query + 1]]:
            cached = int(metadata.cached[row])
            sees[query, run["start"] : min(run["stop"], cached)] = True
            tail = metadata.tail[row, max(0, run["start"] - cached) : max(0, run["stop"] - cached)]
            sees[query, tail] = True
    return torch.from_numpy(rows), torch.from_numpy(sees)


def _largest_first(logits: Tensor, count: int) -> Tensor:
    # If several logits are equal, torch's `topk` returns their tokens in any order, but `argmax`
    # returns the lowest token id.
    token_ids = logits.topk(count, dim=-1).indices
    best = logits.argmax(-1, keepdim=True)
    token_ids = torch.where(token_ids == best, token_ids[..., :1], token_ids)
    token_ids[..., :1] = best
    return token_ids


TORCH = TorchBackend()
