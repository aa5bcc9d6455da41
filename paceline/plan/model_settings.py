"""List the model architectures that plans support."""

from __future__ import annotations

BYTES_OF_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2}
GATED, PLAIN = 3, 2  # Matrices of a feed-forward block.

# Decoders whose layers have four attention matrices and a feed-forward block. The values are the
# matrices of that block, by model type.
DENSE_MATRICES = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"), GATED
    ),
    **dict.fromkeys(
        ("olmo", "olmo2", "olmo3", "granite", "smollm3", "stablelm", "cohere", "cohere2"), GATED
    ),
    **dict.fromkeys(("phi", "gpt_neox", "starcoder2"), PLAIN),
}

# Decoders with experts instead of that block. The values are the config fields of the expert size.
EXPERT_SIZE_FIELDS = {
    **dict.fromkeys(("mixtral", "granitemoe", "olmoe"), "intermediate_size"),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), "moe_intermediate_size"),
}

# Model types whose LM head is tied to the embedding unless the config states otherwise.
TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "starcoder2")

# Model types whose head size is not hidden / heads, so that the config must have head_dim.
REQUIRES_HEAD_DIM = ("gemma", "gemma2", "gemma3_text", "qwen3", "qwen3_moe", "cohere2")

# Model types with sliding attention: every n-th layer has full attention.
FULL_ATTENTION_EVERY = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}

# Bits of a weight by quantisation method, for configs that do not give them.
BITS_OF_METHOD = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4}
