"""A Llama's forward, operation by operation, for drafts on the CPU: around two layers transformers
takes longer than they do.

The same numbers but for rounding: queries, keys and values come of one product, and so do gate and
up; a rotation is rounded once. transformers' own forward is the reference, and what all other
models are run by.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM, PretrainedConfig, PreTrainedModel

from paceline.backend.plain_tensors import is_plain
from paceline.backend.products import Products
from paceline.core.tree import IntArray
from paceline.cpu import simd_f32x8
from paceline.cpu.attention.invariant import attention_by_position
from paceline.cpu.linear.norms import rms_norm
from paceline.cpu.memory import FLOAT_BYTES, HALF_BYTES, address
from paceline.kv_cache.slot_cache import SlotCache
from paceline.model.forward_state import ForwardState
from paceline.model.model_view import ModuleCopier
from paceline.util.compiled import compiled


class _Logits(NamedTuple):
    """What a model returns, as far as it is read."""

    logits: Tensor


class _Layer(NamedTuple):
    """The weights of a layer: those of norms [hidden], of products [outer, inner], some of them
    together.
    """

    before: Tensor
    queries_keys_values: Tensor
    out: Tensor
    between: Tensor
    gate_up: Tensor
    down: Tensor


class DirectLlama:
    """A model as its forwards see it, see `ModelView`.

    Args:
        model: one that `suits`, of bfloat16.
        products: Products of its forwards.
    Attributes:
        config: Configuration of its own.
        state: Forward state of its own.
    """

    stale = False  # nobody gives a draft other modules
    cache_argument = "cache"

    def __init__(self, model: PreTrainedModel, products: Products) -> None:
        decoder: Any = model.get_decoder()
        self.config: PretrainedConfig = copy.deepcopy(model.config)
        copier = ModuleCopier(products)
        self.state: ForwardState = copier.state
        self._linear = products.linear
        self._embedding = copier.copy_of(model.get_input_embeddings())
        self._head = copier.copy_of(model.get_output_embeddings())
        self._layers = [_weights(layer) for layer in decoder.layers]
        self._last, self._eps = decoder.norm.weight.detach(), float(self.config.rms_norm_eps)
        self._heads, self._key_heads = (
            self.config.num_attention_heads,
            self.config.num_key_value_heads,
        )
        self._dim = self._layers[0].queries_keys_values.shape[0] // (
            self._heads + 2 * self._key_heads
        )
        self._turns = _turns(decoder.rotary_emb.inv_freq, self.config.max_position_embeddings)

    def module(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        cache: SlotCache,
        position_ids: Tensor,
        logits_to_keep: Tensor,
        use_cache: bool,
    ) -> _Logits:
        """Return the logits [1, asked, vocab] of sequences that are packed, [1, tokens]; keys
        and values go into the cache.
        """
        hidden = self._embedding(input_ids)
        positions = position_ids[0].numpy()
        for number, layer in enumerate(self._layers):
            states = rms_norm(hidden, layer.before, self._eps)
            hidden += self._attention(
                states, layer, cache.layers[number], attention_mask, positions
            )
            states = rms_norm(hidden, layer.between, self._eps)
            gate, up = self._linear(states, layer.gate_up, None).chunk(2, dim=-1)
            hidden += self._linear(functional.silu(gate).mul_(up), layer.down, None)
        return _Logits(self._head(rms_norm(hidden[:, logits_to_keep], self._last, self._eps)))

    def _attention(
        self, states: Tensor, layer: _Layer, cache: Any, mask: Tensor, positions: IntArray
    ) -> Tensor:
        metadata = self.state.metadata
        assert metadata is not None, "a draft attends by position"
        made = self._linear(states, layer.queries_keys_values, None)
        turned = self._heads + self._key_heads
        _rotate(made.data_ptr(), made.shape[-1], turned, self._dim, positions, self._turns)
        each = made.view(1, -1, turned + self._key_heads, self._dim).transpose(1, 2)
        keys, values = cache.update(each[:, self._heads : turned], each[:, turned:])
        found = attention_by_position(each[:, : self._heads], keys, values, mask, metadata)
        return self._linear(found.flatten(2), layer.out, None)


def suits(model: PreTrainedModel) -> bool:
    """Whether a model is a Llama of the kind that is known here."""
    config: Any = model.config
    plain = (
        type(model) is LlamaForCausalLM
        and config.hidden_act == "silu"
        and not (config.attention_bias or config.mlp_bias)
    )
    read = all(
        is_plain(one) and one.dtype == model.dtype and one.is_contiguous()
        for one in model.parameters()
    )
    return (
        plain
        and read
        and config.rope_parameters["rope_type"] == "default"
        and config.head_dim % (2 * simd_f32x8.WIDTH) == 0
    )


def _weights(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    together = [
        torch.cat([one.weight.detach() for one in some])
        for some in (
            (attention.q_proj, attention.k_proj, attention.v_proj),
            (mlp.gate_proj, mlp.up_proj),
        )
    ]
    before, between = (
        layer.input_layernorm.weight.detach(),
        layer.post_attention_layernorm.weight.detach(),
    )
    return _Layer(
        before,
        together[0],
        attention.o_proj.weight.detach(),
        between,
        together[1],
        mlp.down_proj.weight.detach(),
    )


def _turns(frequencies: Tensor, positions: int) -> NDArray[np.float32]:
    """Return cosines and sines, float32 [positions, 2, dim / 2]."""
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies.float()
    return torch.stack((angles.cos(), angles.sin()), dim=1).contiguous().numpy()


@compiled
def _rotate(
    rows: int, size: int, heads: int, dim: int, positions: IntArray, turns: NDArray[np.float32]
) -> None:
    """Turn the first heads of rows in place: the address of bfloat16 [len(positions), size]."""
    half = dim // 2
    for row in range(len(positions)):
        cosines = address(turns) + positions[row] * dim * FLOAT_BYTES
        for head in range(heads):
            first = rows + (row * size + head * dim) * HALF_BYTES
            for place in range(0, half, simd_f32x8.WIDTH):
                cosine, sine = (
                    simd_f32x8.load(cosines + place * FLOAT_BYTES),
                    simd_f32x8.load(cosines + (half + place) * FLOAT_BYTES),
                )
                left, right = first + place * HALF_BYTES, first + (half + place) * HALF_BYTES
                a, b = simd_f32x8.load_bfloat16(left), simd_f32x8.load_bfloat16(right)
                simd_f32x8.store_bfloat16(
                    left,
                    simd_f32x8.subtract(
                        simd_f32x8.multiply(a, cosine), simd_f32x8.multiply(b, sine)
                    ),
                )
                simd_f32x8.store_bfloat16(
                    right, simd_f32x8.fused(a, sine, simd_f32x8.multiply(b, cosine))
                )
