"""Tiny configurations of decoder types."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from tests.support.tiny_fields import FIELDS, TOWER_FIELDS, VOCAB_SIZE

_SLIDING = ["sliding_attention"] * 3 + ["full_attention"]
_LINEAR = ["linear_attention"] * 3 + ["full_attention"]
_ALTERNATING = ["linear_attention", "full_attention"] * 2
_FEED_FORWARD = ["dense", "sparse", "sparse", "sparse"]
_HYBRID = ["linear_attention"] * 2 + ["hybrid", "linear_attention", "hybrid", "linear_attention"]

# Model types, and fields with other values there. None leaves a field at its default.
_CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "afmoe cohere2 cohere2_moe cwm dory exaone4 exaone_moe flint gemma2 gemma3_text"
        " gemma3n_text gemma4_text gemma4_unified_text gpt_oss granite_swa granitemoe_swa"
        " kolibri1 laguna mellum mimo_v2_flash ministral olmo3 vaultgemma dots1",
        {"layer_types": _SLIDING},
    ),
    ("qwen3_next qwen3_5_text qwen3_5_moe_text olmo_hybrid", {"layer_types": _LINEAR}),
    ("bailing_hybrid kimi_linear", {"layer_types": _ALTERNATING, "mlp_layer_types": _FEED_FORWARD}),
    ("granitemoehybrid minimax", {"layer_types": _ALTERNATING}),
    ("lfm2 lfm2_moe", {"layer_types": ["conv", "full_attention"] * 2}),
    ("bamba", {"attn_layer_indices": [1, 3]}),
    ("qwen3_next", {"decoder_sparse_step": 1, "mlp_only_layers": []}),
    ("qwen3_moe qwen2_moe flint", {"mlp_only_layers": [], "decoder_sparse_step": 1}),
    ("qwen2 qwen3 qwen3_moe qwen2_moe", {"use_sliding_window": True, "max_window_layers": 2}),
    ("dots1", {"max_window_layers": 2}),
    ("lfm2", {"full_attn_idxs": [1, 3], "block_multiple_of": 16}),
    (
        "lfm3",
        {"layer_types": ["conv", "sliding_attention", "conv", "full_attention"], "conv_L_cache": 4},
    ),
    (
        "jamba",
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
        },
    ),
    (
        "llama4_text",
        {"num_local_experts": 2, "num_experts_per_tok": 1, "no_rope_layer_interval": 4},
    ),
    ("smollm3", {"no_rope_layer_interval": 4}),
    ("recurrent_gemma deepseek_v4", {"num_key_value_heads": 1}),
    ("minimax mixtral dots3_note_text", {"sliding_window": None}),
    (
        "falcon",
        {"num_kv_heads": 2, "new_decoder_architecture": True, "alibi": False},
    ),
    ("falcon", {"ffn_hidden_size": None}),
    ("phi3 phi4_multimodal", {"original_max_position_embeddings": 512}),
    ("mamba2", {"num_heads": 8, "n_groups": 1, "head_dim": 16}),
    (
        "axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa minicpm3"
        " sarvam_mla youtu dots3_note_text hy_v4 bailing_hybrid kimi_linear longcat_flash zamba"
        " zamba2",
        {"num_key_value_heads": 4},
    ),
    ("longcat_flash", {"head_dim": 8, "num_layers": 2}),
    ("deepseek_v2", {"topk_method": "greedy"}),
    ("cohere2 cohere cohere2_moe cohere_compass_text", {"logit_scale": 1.0}),
    ("falcon_h1", {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16}),
    (
        "gemma3n_text",
        {
            "num_kv_shared_layers": 0,
            "laurel_rank": 8,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 97,
            "activation_sparsity_pattern": [0.0] * 4,
        },
    ),
    ("gemma4_text", {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 97}),
    ("gpt_neo", {"attention_types": [[["global", "local"], 2]]}),
    (
        "inkling_text inkling2_text inkling2_loop_text",
        {
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "swa_head_dim": 16,
            "d_rel": 8,
            "rel_extent": 64,
            "unpadded_vocab_size": VOCAB_SIZE,
        },
    ),
    (
        "inkling_text",
        {"logits_mup_width_multiplier": 1.0, "layer_types": ["hybrid_sliding", "hybrid"] * 2},
    ),
    ("inkling2_text inkling2_loop_text", {"log_scaling_n_floor": 64}),
    ("inkling2_text inkling2_loop_text", {"n_layers_per_attn_res_block": 2}),
    ("inkling2_text", {"layer_types": ["hybrid_sliding"] * 3 + ["hybrid"]}),
    (
        "inkling2_loop_text",
        {
            "layer_types": ["hybrid_sliding", "hybrid"] * 3,
            "num_hidden_layers": 6,
            "loop_layer_index_start": 2,
            "loop_layer_index_end": 4,
            "loop_num_passes": 2,
            "loop_gate_rank": 8,
        },
    ),
    (
        "qwen4_exp_text",
        {
            "layer_types": [*_LINEAR[:3], "indexed_attention"],
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 8,
            "indexer_compress_ratio": 4,
            "hc_count": 2,
            "hc_lowrank": 8,
        },
    ),
    ("xlstm", {"chunk_size": 16, "qk_dim_factor": 1.0}),
    ("zamba zamba2", {"num_hidden_layers": 6, "layers_block_type": _HYBRID}),
    ("zamba", {"attention_hidden_size": 128, "attention_head_dim": 32}),
    ("zamba2", {"mamba_ngroups": 1, "n_mamba_heads": 8, "adapter_rank": 8}),
    (
        "zaya",
        {
            "num_experts_per_tok": 1,
            "layer_types": ["hybrid_sliding", "hybrid"] * 2,
            "router_hidden_size": 32,
        },
    ),
    (
        "dory",
        {
            "n_input_layers": 1,
            "n_recurrent_layers": 2,
            "n_output_layers": 1,
            "n_recurrent_loops": 2,
        },
    ),
    (
        "deepseek_v4",
        {
            "layer_types": [
                *("sliding_attention", "compressed_sparse_attention"),
                *("heavily_compressed_attention", "compressed_sparse_attention"),
            ],
            "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
            "hc_mult": 2,
            "o_groups": 2,
            "o_lora_rank": 16,
            "index_topk": 2,
            "partial_rotary_factor": 0.5,
        },
    ),
    (
        "dbrx",
        {
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 100.0, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    (
        "minimax_m3_vl_text",
        {
            "layer_types": ["full_attention"] * 2 + ["minimax_m3_sparse"] * 2,
            "index_block_size": 4,
            "index_topk_blocks": 2,
            "index_local_blocks": 1,
        },
    ),
    (
        "nemotron_h",
        {
            "layer_types": [
                *("linear_attention", "moe", "full_attention"),
                *("mlp", "linear_attention", "full_attention"),
            ],
            "num_hidden_layers": 6,
            "moe_shared_expert_intermediate_size": 32,
            "n_groups": 1,
        },
    ),
    (
        "cohere_compass_text",
        {
            "layer_types": _SLIDING,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in set(_SLIDING)
            },
        },
    ),
    ("xlm", {"emb_dim": 64, "causal": True, "is_encoder": False}),
    (
        "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert"
        " roberta roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod",
        {"is_decoder": True},
    ),
    ("xmod", {"languages": ["en"], "default_language": "en"}),
    ("big_bird", {"attention_type": "original_full"}),
    ("rembert", {"input_embedding_size": 32, "output_embedding_size": 64}),
    (
        "reformer",
        {
            "is_decoder": True,
            "axial_pos_embds": False,
            "attention_head_size": 16,
            "attn_layers": ["local", "lsh"] * 2,
            "feed_forward_size": 96,
            "num_buckets": 4,
            "lsh_attn_chunk_length": 8,
            "local_attn_chunk_length": 8,
        },
    ),
)


def tiny_config(model_type: str) -> PreTrainedConfig:
    """Return a small configuration of a model type.

    Windows are shorter than a prompt, and there are few experts.
    """
    kind = CONFIG_MAPPING[model_type]
    values = _values_of(kind, FIELDS)
    for types, changes in _CHANGES:
        if model_type in types.split():
            values |= changes
    for name, part in kind.sub_configs.items():
        is_tower = any(word in name for word in ("vision", "image", "audio"))
        if part is not AutoConfig and (is_tower or "text" in name or "llm" in name):
            values[name] = (
                _values_of(part, FIELDS | TOWER_FIELDS)
                if is_tower
                else tiny_config(part.model_type).to_dict()
            )
    return kind(**{name: value for name, value in values.items() if value is not None})


def _values_of(kind: type[PreTrainedConfig], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the fields that a configuration class has."""
    known = inspect.signature(kind.__init__).parameters
    return {name: value for name, value in fields.items() if name in known}
