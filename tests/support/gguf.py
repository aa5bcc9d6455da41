"""Write tiny GGUF files with the writer of the `gguf` package."""

from __future__ import annotations

from collections.abc import Callable
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
    rope: Callable[[Any], None] | None = None,
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
        rope: Function that adds the scaling of rotary frequencies to the writer.
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
        add_tokenizer(writer)
    if rope is not None:
        rope(writer)
    quantised = gguf.GGMLQuantizationType[kind]
    for name, values in _weights(seed).items():
        if name == leave_out:
            continue
        stored = quantised if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        packed = gguf.quants.quantize(values, stored)
        plain = stored in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
        writer.add_tensor(name, packed, raw_dtype=None if plain else stored)
    return written(writer, path)


def written(writer: Any, path: Path) -> Path:
    """Write everything added to a writer."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: Any) -> None:
    """Add a tokenizer for a vocabulary of 64 tokens."""
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
