"""Write tiny GGUF files with the writer of the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

EOS, EOT = 2, 7
TEMPLATE = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"
_SIZES = {
    "vocab": 64,
    "hidden": 64,
    "mlp": 96,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "context": 256,
}


def write_gguf(
    path: Path,
    kind: str = "F32",
    architecture: str = "llama",
    seed: int = 0,
    leave_out: str = "",
    parts: int = 1,
    tokenizer: bool = True,
) -> Path:
    """Write a Llama with random weights.

    Args:
        path: File to write.
        kind: Format of the matrices.
        architecture: Architecture to declare.
        seed: Seed of the weights.
        leave_out: Name of a tensor that is not written.
        parts: Number of files that the model claims to be split into.
        tokenizer: Whether to write a tokenizer.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(_SIZES["layers"])
    writer.add_context_length(_SIZES["context"])
    writer.add_embedding_length(_SIZES["hidden"])
    writer.add_feed_forward_length(_SIZES["mlp"])
    writer.add_head_count(_SIZES["heads"])
    writer.add_head_count_kv(_SIZES["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(_SIZES["vocab"])
    if parts > 1:
        writer.add_uint16("split.count", parts)
    if tokenizer:
        _add_tokenizer(writer)
    quantised = gguf.GGMLQuantizationType[kind]
    for name, values in _weights(seed).items():
        if name == leave_out:
            continue
        stored = quantised if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        packed = gguf.quants.quantize(values, stored)
        plain = stored in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
        writer.add_tensor(name, packed, raw_dtype=None if plain else stored)
    return _written(writer, path)


def write_hybrid(path: Path) -> Path:
    """Write an LFM2 model with two short convolutions and one attention layer."""
    writer = gguf.GGUFWriter(path, "lfm2")
    hidden, mlp, heads, kv_heads = 64, 96, 4, 2
    writer.add_block_count(3)
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(mlp)
    writer.add_head_count(heads)
    writer.add_head_count_kv([0, kv_heads, 0])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(_SIZES["vocab"])
    writer.add_shortconv_l_cache(3)
    _add_tokenizer(writer)
    size = hidden // heads
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (_SIZES["vocab"], hidden),
        "token_embd_norm": (hidden,),
    }
    for layer in range(3):
        shapes |= {
            f"blk.{layer}.attn_norm": (hidden,),
            f"blk.{layer}.ffn_norm": (hidden,),
            f"blk.{layer}.ffn_gate": (mlp, hidden),
            f"blk.{layer}.ffn_up": (mlp, hidden),
            f"blk.{layer}.ffn_down": (hidden, mlp),
        }
    for layer in (0, 2):
        shapes |= {
            f"blk.{layer}.shortconv.conv": (hidden, 3),
            f"blk.{layer}.shortconv.in_proj": (3 * hidden, hidden),
            f"blk.{layer}.shortconv.out_proj": (hidden, hidden),
        }
    shapes |= {
        "blk.1.attn_q_norm": (size,),
        "blk.1.attn_k_norm": (size,),
        "blk.1.attn_q": (hidden, hidden),
        "blk.1.attn_k": (size * kv_heads, hidden),
        "blk.1.attn_v": (size * kv_heads, hidden),
        "blk.1.attn_output": (hidden, hidden),
    }
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = random.standard_normal(shape) * 0.3 + (len(shape) == 1)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    return _written(writer, path)


def write_experts(path: Path) -> Path:
    """Write a Qwen3-MoE with random weights in Q4_0."""
    hidden, vocab, experts, heads, dim, inner = 64, _SIZES["vocab"], 4, 4, 16, 64
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(1)
    writer.add_context_length(_SIZES["context"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_expert_feed_forward_length(inner)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(2)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocab)
    _add_tokenizer(writer)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (vocab, hidden),
        "output": (vocab, hidden),
        "output_norm": (hidden,),
        "blk.0.attn_norm": (hidden,),
        "blk.0.ffn_norm": (hidden,),
        "blk.0.attn_q_norm": (dim,),
        "blk.0.attn_k_norm": (dim,),
        "blk.0.ffn_gate_inp": (experts, hidden),
    }
    shapes |= {f"blk.0.attn_{name}": (hidden, hidden) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}_exps": (experts, inner, hidden) for name in ("gate", "up")}
    shapes["blk.0.ffn_down_exps"] = (experts, hidden, inner)
    random, quantised = np.random.default_rng(0), gguf.GGMLQuantizationType.Q4_0
    for name, shape in shapes.items():
        values = random.normal(float("norm" in name), 0.1, shape).astype(np.float32)
        if "norm" in name or "gate_inp" in name:
            writer.add_tensor(f"{name}.weight", values)
        else:
            packed = gguf.quants.quantize(values, quantised)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=quantised)
    return _written(writer, path)


def _written(writer: Any, path: Path) -> Path:
    """Write everything added to a writer."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any) -> None:
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(chr(code) for code in range(97, 97 + 26)),
        *(chr(code) for code in range(65, 65 + 26)),
        "Ġ",
        "ab",
    ]
    words += [f"<extra{index}>" for index in range(_SIZES["vocab"] - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_types([3] * 3 + [1] * (len(words) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(EOT)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _weights(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    hidden, mlp, kv = (
        _SIZES["hidden"],
        _SIZES["mlp"],
        _SIZES["hidden"] // _SIZES["heads"] * _SIZES["kv_heads"],
    )
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (_SIZES["vocab"], hidden),
        "output_norm": (hidden,),
    }
    shapes["output"] = (_SIZES["vocab"], hidden)
    for layer in range(_SIZES["layers"]):
        of_layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (hidden,),
            "ffn_norm": (hidden,),
            "attn_q": (hidden, hidden),
            "attn_k": (kv, hidden),
            "attn_v": (kv, hidden),
            "attn_output": (hidden, hidden),
            "ffn_gate": (mlp, hidden),
            "ffn_up": (mlp, hidden),
            "ffn_down": (hidden, mlp),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    return {
        f"{name}.weight": (random.standard_normal(shape) * 0.2 + (len(shape) == 1)).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }
