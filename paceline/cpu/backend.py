"""Implement `Backend` on CPUs with compiled kernels, or with torch as a fallback."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.backend.attention_metadata import AttentionMetadata
from paceline.backend.decoder_layer import DecoderLayer
from paceline.backend.interface import RowMover, ScoreOptions
from paceline.backend.norm_modules import find_rms_norms
from paceline.backend.packed_weight import PackedWeight
from paceline.backend.plain_tensors import PLAIN
from paceline.backend.torch_backend import TorchBackend
from paceline.cpu import amx, avx512_dot
from paceline.cpu.attention.invariant import attention_by_position
from paceline.cpu.decoder_layer.runner import CpuDecoderLayers
from paceline.cpu.expert_products import CpuExpertProducts
from paceline.cpu.kv_row_moves import CacheTensors, move_rows
from paceline.cpu.linear.dispatch import product, takes_weight
from paceline.cpu.linear.norms import NORM_TOLERANCES, rms_norm, takes_norm
from paceline.cpu.packed.product import packed_product, unpack_rows
from paceline.cpu.thread_team import TEAM
from paceline.cpu.topk import argmax, entropies, topk


class CpuBackend(TorchBackend):
    """Computes the operations of `Backend` with paceline's compiled kernels.

    In matrix products, norms and attention, the other rows of a batch do not affect a row's result,
    bit for bit.
    """

    def linear(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows @ weight.T + bias."""
        if type(weight) is PackedWeight:
            return packed_product(rows, weight, bias)
        return product(rows, weight, bias)

    def takes_weight(self, weight: Tensor) -> bool:
        """Return whether `linear` supports a weight.

        The weight must be packed, or a dense tensor with a supported dtype and size.
        """
        return isinstance(weight, PackedWeight) or (type(weight) in PLAIN and takes_weight(weight))

    expert_products = staticmethod(CpuExpertProducts.of)

    unpack = staticmethod(unpack_rows)

    rms_norm = staticmethod(rms_norm)

    def rms_norms(self, model: PreTrainedModel) -> dict[nn.Module, float]:
        """Return the norm modules that `rms_norm` can replace, each with its epsilon."""
        if model.device.type != "cpu":
            return {}
        return find_rms_norms(model, rms_norm, takes_norm, NORM_TOLERANCES)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        metadata: AttentionMetadata,
        options: ScoreOptions = ScoreOptions(),
    ) -> Tensor:
        """Compute batch-invariant attention over the keys of each row, in text order."""
        return attention_by_position(query, key, value, mask, metadata, options)

    def decoder_layers(self, layers: Sequence[DecoderLayer]) -> CpuDecoderLayers | None:
        """Return a runner that computes each layer in one call, or None.

        The layers must be in bfloat16. The result is None if the kernels do not support them.
        """
        return CpuDecoderLayers.of(layers)

    argmax = staticmethod(argmax)

    topk = staticmethod(topk)

    entropies = staticmethod(entropies)

    def row_mover(self, blocks: Sequence[Tensor]) -> RowMover:
        """Return a function that moves KV-cache rows in all layers with one call."""
        described = CacheTensors.of([store for stores in blocks for store in stores])
        return super().row_mover(blocks) if described is None else partial(move_rows, described)

    def thread_team(self, num_helpers: int | None) -> AbstractContextManager[None]:
        """Keep helper threads spinning for this thread's jobs during a `with` block."""
        return nullcontext() if num_helpers is None else TEAM.running(num_helpers)


CPU = CpuBackend()


def has_bfloat16_kernels() -> bool:
    """Return whether the processor has instructions for bfloat16: AMX or AVX512_BF16."""
    return amx.available() or avx512_dot.available()
