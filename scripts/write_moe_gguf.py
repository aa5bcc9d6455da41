"""Write a mixture of experts with random weights as a GGUF file, for timing.

    python scripts/write_moe_gguf.py MOE.gguf

The file is a Qwen3-MoE with SmolLM2's tokenizer: 8 layers, 64 experts per layer, 8 of them used by
each token, 0.9 billion parameters. Matrices are stored in Q4_K. The answers are meaningless. To
compare plain decoding with llama.cpp, run `scripts/compare_llama_cpp.py LLAMA/bin/python --model
MOE.gguf --llama-methods none --drafters none`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from enlarge_gguf import copy_field
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from paceline import demo
from paceline.model.block_encoding import Q4_K, encode

LAYERS, EXPERTS, USED = 8, 64, 8
HIDDEN, EXPERT_SIZE, HEADS, KEY_HEADS, HEAD_SIZE = 1024, 512, 16, 4, 64
STANDARD_DEVIATION = 0.03


def write_experts(target: Path) -> None:
    """Write the model.

    Args:
        target: File to write.
    """
    writer = GGUFWriter(target, "qwen3moe")
    reader = GGUFReader(demo.target_of("smollm2"))
    vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            copy_field(writer, field)
    writer.add_block_count(LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(EXPERT_SIZE)
    writer.add_expert_feed_forward_length(EXPERT_SIZE)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(vocab)
    noise = torch.Generator().manual_seed(0)
    for name, shape in shapes_of(vocab).items():
        weight = torch.randn(shape, generator=noise) * STANDARD_DEVIATION
        if len(shape) == 1:
            writer.add_tensor(name, (1 + weight).numpy())
        elif "gate_inp" in name:
            writer.add_tensor(name, weight.numpy())
        else:
            blocks = encode(weight, Q4_K).view(*shape[:-1], -1)
            writer.add_tensor(name, blocks.numpy(), raw_dtype=GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def shapes_of(vocab: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors by name."""
    of_layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
        "attn_q_norm": (HEAD_SIZE,),
        "attn_k_norm": (HEAD_SIZE,),
        "attn_q": (HEADS * HEAD_SIZE, HIDDEN),
        "attn_k": (KEY_HEADS * HEAD_SIZE, HIDDEN),
        "attn_v": (KEY_HEADS * HEAD_SIZE, HIDDEN),
        "attn_output": (HIDDEN, HEADS * HEAD_SIZE),
        "ffn_gate_inp": (EXPERTS, HIDDEN),
        "ffn_gate_exps": (EXPERTS, EXPERT_SIZE, HIDDEN),
        "ffn_up_exps": (EXPERTS, EXPERT_SIZE, HIDDEN),
        "ffn_down_exps": (EXPERTS, HIDDEN, EXPERT_SIZE),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, HIDDEN),
        "output.weight": (vocab, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return shapes


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, help="GGUF file to write")
    with torch.inference_mode():
        write_experts(parser.parse_args().target)


if __name__ == "__main__":
    main()
