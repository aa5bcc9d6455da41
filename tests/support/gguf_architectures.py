"""Write tiny GGUF files of hybrids and mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.gguf import add_tokenizer, written
from tests.support.versions import require_gguf_architecture

VOCAB, HIDDEN, MLP, HEADS, KV_HEADS, HEAD_SIZE = 64, 64, 96, 4, 2, 16
EXPERTS, EXPERT_MLP, SHARED_MLP = 4, 64, 32
Shapes = dict[str, tuple[int, ...]]


def write_hybrid(path: Path) -> Path:
    """Write an LFM2 model with two short convolutions and one attention layer."""
    writer = new_writer(path, "lfm2", 3)
    writer.add_head_count_kv([0, KV_HEADS, 0])
    writer.add_uint32("lfm2.shortconv.l_cache", 3)
    shapes: Shapes = {"token_embd_norm.weight": (HIDDEN,)}
    for layer in range(3):
        shapes |= of_layer(layer, {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,)} | feed_forward())
    for layer in (0, 2):
        convolution = {
            "shortconv.conv": (HIDDEN, 3),
            "shortconv.in_proj": (3 * HIDDEN, HIDDEN),
            "shortconv.out_proj": (HIDDEN, HIDDEN),
        }
        shapes |= of_layer(layer, convolution)
    return write(writer, path, shapes | of_layer(1, attention()), "F32", scale=0.3)


def write_experts(path: Path, kinds: Mapping[str, str] | None = None) -> Path:
    """Write a Qwen3-MoE with one layer.

    Args:
        path: File to write.
        kinds: Formats of tensors by a part of their name; others are in Q4_0.
    """
    writer = new_writer(path, "qwen3moe", 1)
    writer.add_head_count_kv(KV_HEADS)
    _add_experts(writer, 2)
    shapes = of_layer(0, {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,)} | attention())
    shapes |= of_layer(0, _experts())
    shapes |= {"output.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    return write(writer, path, shapes, "Q4_0", kinds or {})


def write_qwen2_moe(path: Path, kind: str = "Q4_0") -> Path:
    """Write a Qwen2-MoE with one layer, whose shared expert sees every token."""
    writer = new_writer(path, "qwen2moe", 1)
    writer.add_head_count_kv(KV_HEADS)
    _add_experts(writer, EXPERTS)
    writer.add_expert_shared_feed_forward_length(SHARED_MLP)
    projections = {name: shape for name, shape in attention().items() if "norm" not in name}
    norms: Shapes = {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,)}
    shapes = of_layer(0, norms | projections | _experts() | _shared())
    shapes |= {f"blk.0.attn_{name}.bias": projections[f"attn_{name}"][:1] for name in "qkv"}
    shapes |= {"output.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    return write(writer, path, shapes, kind)


def write_minimax(path: Path, kind: str = "Q4_0") -> Path:
    """Write a MiniMax-M2 with one layer, which rotates half of every head."""
    writer = new_writer(path, "minimax-m2", 1, mlp=EXPERT_MLP)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_SIZE // 2)
    _add_experts(writer, 2)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    norms: Shapes = {
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
        "attn_q_norm": (HEADS * HEAD_SIZE,),
        "attn_k_norm": (KV_HEADS * HEAD_SIZE,),
    }
    shapes = of_layer(0, attention() | norms | _experts())
    shapes |= {"output.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    return write(writer, path, shapes | {"blk.0.exp_probs_b.bias": (EXPERTS,)}, kind)


def write_mamba(path: Path, kind: str = "Q4_0") -> Path:
    """Write a Mamba with two layers."""
    inner, states, rank = 2 * HIDDEN, 16, 32
    writer = new_writer(path, "mamba", 2)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(states)
    writer.add_ssm_time_step_rank(rank)
    writer.add_ssm_inner_size(inner)
    mixer: Shapes = {
        "attn_norm": (HIDDEN,),
        "ssm_in": (2 * inner, HIDDEN),
        "ssm_conv1d": (inner, 4),
        "ssm_x": (rank + 2 * states, inner),
        "ssm_dt": (inner, rank),
        "ssm_out": (HIDDEN, inner),
    }
    shapes: Shapes = {"output_norm.weight": (HIDDEN,)}
    for layer in range(2):
        shapes |= of_layer(layer, mixer)
        shapes |= {f"blk.{layer}.ssm_a": (inner, states), f"blk.{layer}.ssm_d": (inner,)}
        shapes |= {f"blk.{layer}.ssm_{name}.bias": (inner,) for name in ("conv1d", "dt")}
    return write(writer, path, shapes, kind)


def write_qwen35(path: Path, kind: str = "Q8_0", experts: bool = False) -> Path:
    """Write a Qwen3.5 with two linear attention and two full attention layers.

    Args:
        path: File to write.
        kind: Format of the matrices.
        experts: Whether the feed-forward layers are mixtures of experts.
    """
    architecture, key_heads, value_heads, size = "qwen35moe" if experts else "qwen35", 2, 4, 32
    writer = new_writer(path, architecture, 4)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_SIZE // 2)
    writer.add_rope_dimension_sections([2, 1, 1, 0])
    writer.add_uint32(f"{architecture}.full_attention_interval", 2)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(size)
    writer.add_uint32(f"{architecture}.ssm.group_count", key_heads)
    writer.add_ssm_time_step_rank(value_heads)
    writer.add_ssm_inner_size(value_heads * size)
    if experts:
        # All of them: after rounding, another choice of experts would change the logits.
        _add_experts(writer, EXPERTS)
        writer.add_expert_shared_feed_forward_length(SHARED_MLP)
    width, mixed = value_heads * size, (2 * key_heads + value_heads) * size
    linear: Shapes = {
        "attn_qkv": (mixed, HIDDEN),
        "attn_gate": (width, HIDDEN),
        "ssm_alpha": (value_heads, HIDDEN),
        "ssm_beta": (value_heads, HIDDEN),
        "ssm_conv1d": (mixed, 4),
        "ssm_norm": (size,),
        "ssm_out": (HIDDEN, width),
    }
    shapes: Shapes = {"output_norm.weight": (HIDDEN,)}
    for layer in range(4):
        norms: Shapes = {"attn_norm": (HIDDEN,), "post_attention_norm": (HIDDEN,)}
        shapes |= of_layer(layer, norms | (_experts() | _shared() if experts else feed_forward()))
        if layer % 2:
            shapes |= of_layer(layer, attention(gated=True))
        else:
            shapes |= of_layer(layer, linear)
            shapes |= {f"blk.{layer}.ssm_a": (value_heads,)}
            shapes |= {f"blk.{layer}.ssm_dt.bias": (value_heads,)}
    return write(writer, path, shapes, kind)


def new_writer(
    path: Path, architecture: str, layers: int, head_size: int = HEAD_SIZE, mlp: int = MLP
) -> Any:
    """Return a writer with the sizes of a tiny model and a tokenizer."""
    require_gguf_architecture(architecture)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(mlp)
    writer.add_head_count(HEADS)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(20000.0)
    writer.add_vocab_size(VOCAB)
    add_tokenizer(writer)
    return writer


def _add_experts(writer: Any, num_used: int) -> None:
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(num_used)
    writer.add_expert_feed_forward_length(EXPERT_MLP)


def feed_forward() -> Shapes:
    """Return the shapes of a gated feed-forward network."""
    return {"ffn_gate": (MLP, HIDDEN), "ffn_up": (MLP, HIDDEN), "ffn_down": (HIDDEN, MLP)}


def attention(gated: bool = False, size: int = HEAD_SIZE) -> Shapes:
    """Return the shapes of attention with norms of queries and keys.

    Args:
        gated: Whether the queries' projection also computes gates.
        size: Size of a head.
    """
    return {
        "attn_q_norm": (size,),
        "attn_k_norm": (size,),
        "attn_q": ((2 if gated else 1) * HEADS * size, HIDDEN),
        "attn_k": (KV_HEADS * size, HIDDEN),
        "attn_v": (KV_HEADS * size, HIDDEN),
        "attn_output": (HIDDEN, HEADS * size),
    }


def _experts() -> Shapes:
    return {
        "ffn_gate_inp": (EXPERTS, HIDDEN),
        "ffn_gate_exps": (EXPERTS, EXPERT_MLP, HIDDEN),
        "ffn_up_exps": (EXPERTS, EXPERT_MLP, HIDDEN),
        "ffn_down_exps": (EXPERTS, HIDDEN, EXPERT_MLP),
    }


def _shared() -> Shapes:
    return {
        "ffn_gate_inp_shexp": (HIDDEN,),
        "ffn_gate_shexp": (SHARED_MLP, HIDDEN),
        "ffn_up_shexp": (SHARED_MLP, HIDDEN),
        "ffn_down_shexp": (HIDDEN, SHARED_MLP),
    }


def of_layer(layer: int, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Return the shapes of a layer's weights by their full names."""
    return {f"blk.{layer}.{name}.weight": shape for name, shape in shapes.items()}


def write(
    writer: Any,
    path: Path,
    shapes: Shapes,
    kind: str,
    kinds: Mapping[str, str] | None = None,
    scale: float = 0.1,
) -> Path:
    """Write random weights; vectors, convolutions, routers and decay rates are in float32."""
    random = np.random.default_rng(0)
    for name, shape in ({"token_embd.weight": (VOCAB, HIDDEN)} | shapes).items():
        values = random.normal(float("norm" in name), scale, shape).astype(np.float32)
        if name.endswith("ssm_a"):
            values = -np.exp(values)  # the file holds decay rates below 0
        chosen = next((own for part, own in (kinds or {}).items() if part in name), kind)
        is_plain = name.endswith("ssm_a") or any(part in name for part in ("conv", "gate_inp"))
        is_matrix = len(shape) > 1 and not is_plain
        stored = gguf.GGMLQuantizationType[chosen if is_matrix else "F32"]
        packed = gguf.quants.quantize(values, stored)
        plain = stored in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
        writer.add_tensor(name, packed, raw_dtype=None if plain else stored)
    return written(writer, path)
