"""Configurations of tiny models that verify trees or chains."""

from __future__ import annotations

from typing import Any

VOCAB = 97
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SLIDING = ["sliding_attention"] * 3 + ["full_attention"]


def llama(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.25,
        **SPECIAL,
        **changes,
    }


def gpt2(**changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": VOCAB,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
        "initializer_range": 0.25,
    }
    return {**sizes, **SPECIAL, **changes}


def falcon(**changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return {**sizes, "initializer_range": 0.25, **SPECIAL, **changes}


def deepseek(**changes: Any) -> dict[str, Any]:
    attention = {
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    }
    experts = {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }
    groups = {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    return llama(num_key_value_heads=4, **attention, **experts, **groups, **changes)


def gemma4(unified: bool = False, **changes: Any) -> dict[str, Any]:
    """Return a Gemma 4 configuration with two sizes of heads."""
    own = (
        {} if unified else {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB}
    )
    options = {"layer_types": SLIDING, "tie_word_embeddings": False, **REACH, **HEADS, **own}
    return llama(**{**options, **changes})


_OPT = {
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
HEADS = {"head_dim": 16}
REACH = {"sliding_window": 8, "num_hidden_layers": 4}

# Name -> (model type, configuration). Windows and chunks are shorter than prompts, so that they
# take effect.
TREES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", llama()),
    "mistral": ("mistral", llama(sliding_window=8)),
    "mixtral": ("mixtral", llama(sliding_window=None, **EXPERTS)),
    "qwen2": ("qwen2", llama()),
    "qwen2_mixed": ("qwen2", llama(use_sliding_window=True, max_window_layers=2, **REACH)),
    "qwen3": ("qwen3", llama(**HEADS)),
    "qwen3_moe": (
        "qwen3_moe",
        llama(
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            mlp_only_layers=[],
            decoder_sparse_step=1,
            **HEADS,
        ),
    ),
    "gemma": ("gemma", llama(**HEADS)),
    "gemma2": ("gemma2", llama(query_pre_attn_scalar=16, **REACH, **HEADS)),
    "gemma3": (
        "gemma3_text",
        llama(query_pre_attn_scalar=16, layer_types=SLIDING, **REACH, **HEADS),
    ),
    "phi": ("phi", llama(num_key_value_heads=4)),
    "phi3": ("phi3", llama(sliding_window=8, original_max_position_embeddings=512)),
    "gpt2": ("gpt2", gpt2()),
    "gpt_neox": ("gpt_neox", llama(num_key_value_heads=4)),
    "gptj": ("gptj", gpt2(rotary_dim=8)),
    "opt": (
        "opt",
        {"vocab_size": VOCAB, "word_embed_proj_dim": 64, "init_std": 0.25, **_OPT, **SPECIAL},
    ),
    "falcon": ("falcon", falcon(num_kv_heads=2, new_decoder_architecture=True, alibi=False)),
    "stablelm": ("stablelm", llama()),
    "olmo2": ("olmo2", llama()),
    "olmo3": ("olmo3", llama(**REACH)),
    "olmoe": ("olmoe", llama(num_experts=4, num_experts_per_tok=2, num_key_value_heads=4)),
    "granite": ("granite", llama()),
    "granitemoe": ("granitemoe", llama(**EXPERTS)),
    "cohere": ("cohere", llama()),
    "cohere2": ("cohere2", llama(layer_types=SLIDING, **REACH, **HEADS)),
    "deepseek_v2": ("deepseek_v2", deepseek(topk_method="greedy")),
    "deepseek_v3": ("deepseek_v3", deepseek()),
    "gpt_oss": ("gpt_oss", llama(**REACH, **EXPERTS, **HEADS)),
    "smollm3": ("smollm3", llama(num_hidden_layers=4, no_rope_layer_interval=4)),
    "llama4": (
        "llama4_text",
        llama(
            num_hidden_layers=4,
            attention_chunk_size=8,
            num_local_experts=2,
            num_experts_per_tok=1,
            intermediate_size_mlp=96,
            no_rope_layer_interval=4,
            **HEADS,
        ),
    ),
    "gpt_bigcode": ("gpt_bigcode", gpt2(multi_query=True)),
    "starcoder2": ("starcoder2", llama(sliding_window=8)),
    "nemotron": ("nemotron", llama()),
    "exaone4": ("exaone4", llama(sliding_window_pattern=4, **REACH)),
    "ernie4_5": ("ernie4_5", llama(**HEADS)),
    "glm4": ("glm4", llama(**HEADS)),
    "hunyuan": ("hunyuan_v1_dense", llama(**HEADS)),
    "seed_oss": ("seed_oss", llama(**HEADS)),
    "gemma4": ("gemma4_text", gemma4()),
    "gemma4_shared": (
        "gemma4_text",
        gemma4(num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2),
    ),
    "gemma4_wide": (
        "gemma4_text",
        gemma4(attention_k_eq_v=True, num_global_key_value_heads=1, global_head_dim=32),
    ),
    "gemma4_moe": (
        "gemma4_text",
        gemma4(
            attention_k_eq_v=True,
            enable_moe_block=True,
            num_experts=4,
            top_k_experts=2,
            moe_intermediate_size=32,
        ),
    ),
    "gemma4_unified": ("gemma4_unified_text", gemma4(unified=True)),
}

# Positions follow the cache slot (ALiBi, or no position ids), so only chains can be verified.
CHAINS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon_alibi": (
        "falcon",
        falcon(new_decoder_architecture=False, multi_query=False, alibi=True),
    ),
    "bloom": (
        "bloom",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 4,
            "initializer_range": 0.25,
            **SPECIAL,
        },
    ),
    "mpt": (
        "mpt",
        {
            "vocab_size": VOCAB,
            "d_model": 64,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": 512,
            "initializer_range": 0.25,
            **SPECIAL,
        },
    ),
    "roformer": ("roformer", llama(is_decoder=True)),
}
