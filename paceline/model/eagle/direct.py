"""Run a small Llama without transformers' modules, for draft models on the CPU.

In a model with two layers, the overhead of transformers' modules exceeds the time of the
operations themselves. The results differ from those of transformers only by rounding. One product
computes queries, keys and values, another computes gate and up, and each rotation is rounded only
once. Tests use transformers' forward method as the reference.
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
    """A model's output, with the only field that the model runner reads."""

    logits: Tensor


class _Layer(NamedTuple):
    """Weights of a decoder layer: norms [hidden], and matrices [outputs, inputs].

    Attributes:
        before: Norm before attention.
        queries_keys_values: Weights for the queries, keys and values.
        out: Weights for the attention's output.
        between: Norm before the MLP.
        gate_up: Weights for the MLP's input.
        down: Weights for the MLP's output.
    """

    before: Tensor
    queries_keys_values: Tensor
    out: Tensor
    between: Tensor
    gate_up: Tensor
    down: Tensor


class DirectLlama:
    """View of a bfloat16 draft model; see `ModelView`.

    Args:
        model: Draft model that `suits` accepts.
        products: Matrix products for the forward passes.
    Attributes:
        config: Copy of the model's configuration.
        state: Forward state that the modules read.
    """

    stale = False  # the modules of a draft model are not replaced
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
        """Return the logits [1, columns, vocab] of a ragged batch [1, tokens].

        Args:
            input_ids: Token ids of the batch.
            attention_mask: Mask that represents the keys visible to each query.
            cache: Cache to which keys and values are written.
            position_ids: Positions of the tokens in their texts.
            logits_to_keep: Columns for which logits are computed.
            use_cache: Ignored; the cache is always used.
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
        rows = self._linear(states, layer.queries_keys_values, None)
        rotated = self._heads + self._key_heads
        _rotate(rows.data_ptr(), rows.shape[-1], rotated, self._dim, positions, self._turns)
        heads = rows.view(1, -1, rotated + self._key_heads, self._dim).transpose(1, 2)
        keys, values = cache.update(heads[:, self._heads : rotated], heads[:, rotated:])
        output = attention_by_position(heads[:, : self._heads], keys, values, mask, metadata)
        return self._linear(output.flatten(2), layer.out, None)


def suits(model: PreTrainedModel) -> bool:
    """Return whether `DirectLlama` can run a model."""
    config: Any = model.config
    plain = (
        type(model) is LlamaForCausalLM
        and config.hidden_act == "silu"
        and not (config.attention_bias or config.mlp_bias)
    )
    readable = all(
        is_plain(parameter) and parameter.dtype == model.dtype and parameter.is_contiguous()
        for parameter in model.parameters()
    )
    return (
        plain
        and readable
        and config.rope_parameters["rope_type"] == "default"
        and config.head_dim % (2 * simd_f32x8.WIDTH) == 0
    )


def _weights(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    joined = [
        torch.cat([module.weight.detach() for module in modules])
        for modules in (
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
        joined[0],
        attention.o_proj.weight.detach(),
        between,
        joined[1],
        mlp.down_proj.weight.detach(),
    )


def _turns(frequencies: Tensor, positions: int) -> NDArray[np.float32]:
    """Return the rotary cosines and sines, float32 [positions, 2, dim / 2]."""
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies.float()
    return torch.stack((angles.cos(), angles.sin()), dim=1).contiguous().numpy()


@compiled
def _rotate(
    rows: int, size: int, heads: int, dim: int, positions: IntArray, turns: NDArray[np.float32]
) -> None:
    """Rotate the first heads of each row in place (RoPE).

    Args:
        rows: Address of a bfloat16 array [len(positions), size].
        size: Number of values per row.
        heads: Number of heads to rotate.
        dim: Number of values per head.
        positions: Text position of each row.
        turns: Cosines and sines returned by `_turns`.
    """
    half = dim // 2
    for row in range(len(positions)):
        cosines = address(turns) + positions[row] * dim * FLOAT_BYTES
        for head in range(heads):
            first = rows + (row * size + head * dim) * HALF_BYTES
            for offset in range(0, half, simd_f32x8.WIDTH):
                cosine, sine = (
                    simd_f32x8.load(cosines + offset * FLOAT_BYTES),
                    simd_f32x8.load(cosines + (half + offset) * FLOAT_BYTES),
                )
                left, right = first + offset * HALF_BYTES, first + (half + offset) * HALF_BYTES
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
