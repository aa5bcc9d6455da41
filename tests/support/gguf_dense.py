"""Write tiny GGUF files of dense models with random float32 weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from tests.support.gguf_architectures import (
    HEAD_SIZE,
    HEADS,
    HIDDEN,
    KV_HEADS,
    MLP,
    VOCAB,
    Shapes,
    attention,
    feed_forward,
    new_writer,
    of_layer,
    write,
)

_LAYERS = 3
_NORMS: Shapes = {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,)}
_HEAD: Shapes = {"output.weight": (VOCAB, HIDDEN)}


def write_qwen2(path: Path) -> Path:
    """Write a Qwen2, with biases of queries, keys and values."""
    writer = new_writer(path, "qwen2", _LAYERS)
    writer.add_head_count_kv(KV_HEADS)
    return _write(
        writer, path, _NORMS | _plain_attention() | feed_forward(), "attn_q attn_k attn_v"
    )


def write_qwen3(path: Path) -> Path:
    """Write a Qwen3; transformers knows its head size without the file."""
    size = 128
    writer = new_writer(path, "qwen3", _LAYERS, size)
    writer.add_head_count_kv(KV_HEADS)
    return _write(writer, path, _NORMS | attention(size=size) | feed_forward())


def write_gemma2(path: Path) -> Path:
    """Write a Gemma 2, with soft caps and a window."""
    size = 256
    writer = new_writer(path, "gemma2", _LAYERS, size)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_sliding_window(64)
    writer.add_attn_logit_softcapping(50.0)
    writer.add_final_logit_softcapping(30.0)
    shapes = _gemma_norms() | _plain_attention(size) | feed_forward()
    return _write(writer, path, shapes, head={})


def write_gemma3(path: Path, layers: int = 7, size: int = 256) -> Path:
    """Write a Gemma 3, with windows, and scaled rotary frequencies in every sixth layer."""
    writer = new_writer(path, "gemma3", layers, size)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_sliding_window(64)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)
    shapes = _gemma_norms() | attention(size=size) | feed_forward()
    return _write(writer, path, shapes, head={}, layers=layers)


def write_gemma4(path: Path) -> Path:
    """Write a Gemma 4, whose last two of four layers use the keys and values of the others."""
    size, window_size, inputs, layers = 32, 16, 16, 4
    writer = new_writer(path, "gemma4", layers, size)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length_swa(window_size)
    writer.add_value_length_swa(window_size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_dimension_count_swa(window_size)
    writer.add_rope_freq_base_swa(5000.0)
    writer.add_sliding_window(64)
    writer.add_sliding_window_pattern([True, False] * 2)
    writer.add_shared_kv_layers(2)
    writer.add_embedding_length_per_layer_input(inputs)
    writer.add_final_logit_softcapping(30.0)
    # A factor of 1e30 stops a rotation.
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * 4 + [1e30] * 12, np.float32))
    shapes: Shapes = {
        "output_norm.weight": (HIDDEN,),
        "per_layer_token_embd.weight": (VOCAB, inputs * layers),
        "per_layer_model_proj.weight": (inputs * layers, HIDDEN),
        "per_layer_proj_norm.weight": (inputs,),
    }
    of_each = _gemma_norms() | feed_forward()
    of_each |= {"post_norm": (HIDDEN,), "inp_gate": (inputs, HIDDEN), "proj": (HIDDEN, inputs)}
    for layer in range(layers):
        shapes |= of_layer(layer, of_each | attention(size=size if layer % 2 else window_size))
        writer.add_tensor(f"blk.{layer}.layer_output_scale.weight", np.ones(1, np.float32))
    return write(writer, path, shapes, "F32")


def write_phi3(path: Path) -> Path:
    """Write a Phi-3, whose queries, keys and values are one tensor."""
    writer = new_writer(path, "phi3", _LAYERS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_pad_token_id(0)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_scaling_orig_ctx_len(256)
    shapes: Shapes = {
        "attn_qkv": ((HEADS + 2 * KV_HEADS) * HEAD_SIZE, HIDDEN),
        "attn_output": (HIDDEN, HEADS * HEAD_SIZE),
        "ffn_up": (2 * MLP, HIDDEN),
        "ffn_down": (HIDDEN, MLP),
    }
    return _write(writer, path, _NORMS | shapes)


def write_starcoder2(path: Path) -> Path:
    """Write a StarCoder2, with layer norms and biases everywhere."""
    writer = new_writer(path, "starcoder2", _LAYERS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_SIZE)
    shapes = _NORMS | _plain_attention() | {"ffn_up": (MLP, HIDDEN), "ffn_down": (HIDDEN, MLP)}
    return _write(writer, path, shapes, " ".join(shapes), {"output_norm.bias": (HIDDEN,)})


def write_stablelm(path: Path) -> Path:
    """Write a StableLM, which rotates a quarter of every head."""
    writer = new_writer(path, "stablelm", _LAYERS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_SIZE // 4)
    shapes = _NORMS | _plain_attention() | feed_forward()
    return _write(writer, path, shapes, "attn_norm ffn_norm", {"output_norm.bias": (HIDDEN,)})


def _plain_attention(size: int = HEAD_SIZE) -> Shapes:
    return {name: shape for name, shape in attention(size=size).items() if "norm" not in name}


def _gemma_norms() -> Shapes:
    post_norms: Shapes = {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}
    return _NORMS | post_norms


def _write(
    writer: gguf.GGUFWriter,
    path: Path,
    of_each: Shapes,
    biased: str = "",
    others: Shapes | None = None,
    head: Shapes = _HEAD,
    layers: int = _LAYERS,
) -> Path:
    """Write layers of the same shapes.

    Args:
        writer: Writer with the sizes of the model.
        path: File to write.
        of_each: Shapes of the weights of a layer.
        biased: Names of the weights that have biases, separated by spaces.
        others: Shapes of further weights outside the layers.
        head: Shape of the LM head; empty if it is tied to the embedding.
        layers: Number of layers.
    """
    shapes: Shapes = {"output_norm.weight": (HIDDEN,)} | head | (others or {})
    for layer in range(layers):
        shapes |= of_layer(layer, of_each)
        shapes |= {f"blk.{layer}.{name}.bias": of_each[name][:1] for name in biased.split()}
    return write(writer, path, shapes, "F32", scale=0.1)


DENSE: dict[str, Callable[[Path], Path]] = {
    "qwen2": write_qwen2,
    "qwen3": write_qwen3,
    "gemma2": write_gemma2,
    "gemma3": write_gemma3,
    "gemma4": write_gemma4,
    "gemma3-27b": lambda path: write_gemma3(path, 62, 128),
    "phi3": write_phi3,
    "starcoder2": write_starcoder2,
    "stablelm": write_stablelm,
}
