"""Write SmolLM2 as a larger GGUF file that costs as much as a larger model.

    python scripts/enlarge_gguf.py LARGE.gguf [--width 1536]

The larger model computes nearly the same function: its added weights are random, but zero weights
cancel their effect (`paceline.bench.cost_scale`). Projections are stored in Q4_K and the embedding
in Q8_0. SmolLM2's draft head, padded in the same way, is written to LARGE.draft_head.safetensors.
With `scripts/compare_llama_cpp.py --model LARGE.gguf --drafters none
auto:draft_head=LARGE.draft_head.safetensors`, paceline and llama.cpp run the same file.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, ReaderField
from torch import Tensor

from paceline import demo
from paceline.bench.cost_scale import enlarge
from paceline.draft_head.trained import card_of, load, save
from paceline.model.block_encoding import Q4_K, Q8_0, encode
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import Sketch
from paceline.model.loading import load_model

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The writer sets these fields itself.
_OWN_FIELDS = ("GGUF.", "general.architecture")


def write_enlarged(target: Path, width: int) -> None:
    """Write the enlarged model.

    Args:
        target: File to write.
        width: New hidden size, a multiple of 768.
    """
    source = demo.target_of("smollm2")
    model: Any = load_model(str(source), dtype="bfloat16", device="cpu", unpack=True)
    larger: Any = enlarge(model, width, model.config.num_hidden_layers)
    writer = GGUFWriter(target, "llama")
    copy_fields(writer, GGUFReader(source), larger.config)
    add_blocks(writer, "token_embd.weight", larger.model.embed_tokens.weight)
    writer.add_tensor("output_norm.weight", larger.model.norm.weight.float().numpy())
    for index, layer in enumerate(larger.model.layers):
        for name, path in _LAYER_NAMES.items():
            weight = layer.get_submodule(path).weight.detach()
            full_name = f"blk.{index}.{name}.weight"
            if weight.ndim == 1:
                writer.add_tensor(full_name, weight.float().numpy())
            else:
                heads = heads_of(name, larger.config)
                add_blocks(writer, full_name, interleave_halves(weight, heads) if heads else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_head(target.with_suffix(".draft_head.safetensors"), model, larger)


def write_head(target: Path, model: Any, larger: Any) -> None:
    """Write the package's draft head for a model, padded to fit an enlarged copy.

    Args:
        target: File to write.
        model: The original model.
        larger: The enlarged model.
    """
    original = CachedLM(model)
    head = next(path for path in demo.DRAFT_HEADS if card_of(path).closeness(original) > 0)
    # A reader of the file does not know that the model was enlarged.
    larger.config.enlarged_from = None
    card = replace(card_of(head), sketch=Sketch.from_model(larger).encode())
    hidden = larger.config.hidden_size
    save(target, load(head, original).widened(hidden, hidden), card)


def copy_fields(writer: GGUFWriter, reader: GGUFReader, config: Any) -> None:
    """Copy the metadata of a file, with the sizes of the enlarged model."""
    sizes = {
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    for name, field in reader.fields.items():
        if name.startswith(_OWN_FIELDS):
            continue
        copy_field(writer, field, sizes.get(name))


def copy_field(writer: GGUFWriter, field: ReaderField, value: Any = None) -> None:
    """Copy a metadata field of a file, with another value if one is given."""
    kind, *rest = field.types
    element = rest[0] if kind == GGUFValueType.ARRAY else None
    content = field.contents() if value is None else value
    writer.add_key_value(field.name, content, kind, element)


def add_blocks(writer: GGUFWriter, name: str, weight: Tensor) -> None:
    """Add a matrix: the embedding in Q8_0, all other matrices in Q4_K."""
    is_embedding = name.startswith("token_embd")
    blocks = encode(weight, Q8_0 if is_embedding else Q4_K).numpy()
    kind = GGMLQuantizationType.Q8_0 if is_embedding else GGMLQuantizationType.Q4_K
    writer.add_tensor(name, np.ascontiguousarray(blocks), raw_dtype=kind)


def heads_of(name: str, config: Any) -> int:
    """Return the number of heads of a query or key projection; 0 for other weights."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    return int(heads.get(name, 0))


def interleave_halves(weight: Tensor, num_heads: int) -> Tensor:
    """Return the rows of every head in llama.cpp's order: the two rotary halves alternate."""
    rows, columns = weight.shape
    halves = weight.view(num_heads, 2, rows // num_heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, help="GGUF file to write")
    parser.add_argument("--width", type=int, default=1536, help="hidden size; default: 1536")
    options = parser.parse_args()
    with torch.inference_mode():
        write_enlarged(options.target, options.width)


if __name__ == "__main__":
    main()
