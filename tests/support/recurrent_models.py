"""Configurations of tiny models with recurrent layers."""

from __future__ import annotations

from typing import Any

from tests.support.tree_models import HEADS, SPECIAL, VOCAB, deepseek, llama

_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
_NEMOTRON = {
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 1,
    "chunk_size": 8,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SHARED = {"shared_expert_intermediate_size": 32}
_ROUTED = {
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
_LINEAR = ["linear_attention", "full_attention"]
_CONV = ["conv", "full_attention"]
_ZAMBA = ["linear_attention", "hybrid", "linear_attention"]
_INKLING = {
    "layer_types": ["hybrid_sliding", "hybrid"],
    "unpadded_vocab_size": VOCAB,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "d_rel": 8,
    "rel_extent": 64,
    "sliding_window": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
}


def _scan(**changes: Any) -> dict[str, Any]:
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
    return {**sizes, "initializer_range": 0.25, **SPECIAL, **changes}


# Name -> (model type, configuration), for models that verify draft trees.
BRANCHING: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("lfm2", llama(layer_types=_CONV, block_multiple_of=16)),
    "lfm2_moe": (
        "lfm2_moe",
        llama(layer_types=_CONV, num_dense_layers=1, **_EXPERTS),
    ),
    "lfm3": (
        "lfm3",
        llama(
            num_hidden_layers=3,
            layer_types=["conv", "sliding_attention", "full_attention"],
            sliding_window=8,
            conv_L_cache=4,
            **_EXPERTS,
            **HEADS,
        ),
    ),
    "qwen3_5": ("qwen3_5_text", llama(layer_types=_LINEAR, **_DELTA, **HEADS)),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        llama(layer_types=_LINEAR, **_DELTA, **_EXPERTS, **_SHARED, **HEADS),
    ),
    "qwen3_next": (
        "qwen3_next",
        llama(layer_types=_LINEAR, mlp_only_layers=[], **_DELTA, **_EXPERTS, **_SHARED, **HEADS),
    ),
    "olmo_hybrid": ("olmo_hybrid", llama(layer_types=_LINEAR, **_DELTA)),
    "kimi_linear": (
        "kimi_linear",
        {
            **deepseek(
                layer_types=_LINEAR,
                mlp_layer_types=["dense", "sparse"],
                linear_num_heads=4,
                linear_head_dim=16,
                head_dim=16,
            ),
            **_ROUTED,
        },
    ),
    "bailing_hybrid": (
        "bailing_hybrid",
        {
            **deepseek(
                layer_types=_LINEAR,
                mlp_layer_types=["dense", "sparse"],
                linear_num_heads=4,
                linear_head_dim=16,
                head_dim=16,
            ),
            **_ROUTED,
        },
    ),
    "mamba2": (
        "mamba2",
        _scan(num_heads=8, head_dim=16, n_groups=1, chunk_size=8, expand=2),
    ),
    "bamba": ("bamba", llama(attn_layer_indices=[1], mamba_expand=2, **_MAMBA)),
    "falcon_h1": (
        "falcon_h1",
        llama(mamba_d_ssm=64, **{**_MAMBA, "mamba_n_heads": 4}, **HEADS),
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        llama(layer_types=_LINEAR, mamba_expand=2, shared_intermediate_size=32, **_MAMBA),
    ),
    "nemotron_h": (
        "nemotron_h",
        llama(
            num_hidden_layers=4,
            layer_types=["linear_attention", "moe", "full_attention", "mlp"],
            moe_shared_expert_intermediate_size=32,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            **_NEMOTRON,
            **HEADS,
        ),
    ),
    "zamba2": (
        "zamba2",
        llama(
            num_hidden_layers=3,
            layers_block_type=_ZAMBA,
            num_key_value_heads=4,
            n_mamba_heads=8,
            mamba_ngroups=1,
            mamba_d_state=8,
            chunk_size=8,
            adapter_rank=8,
        ),
    ),
}

_SCAN = {"mamba_d_state": 8, "mamba_dt_rank": 8, "mamba_expand": 2}
BRANCHING |= {
    "mamba": ("mamba", _scan(expand=2, time_step_rank=8)),
    "falcon_mamba": ("falcon_mamba", _scan(expand=2, time_step_rank=8)),
    "jamba": (
        "jamba",
        llama(
            num_hidden_layers=4,
            attn_layer_period=2,
            attn_layer_offset=1,
            num_experts=2,
            num_experts_per_tok=1,
            **_SCAN,
        ),
    ),
    "zamba": (
        "zamba",
        llama(
            num_hidden_layers=4,
            layers_block_type=["linear_attention", "hybrid", "linear_attention", "hybrid"],
            n_mamba_heads=2,
            num_key_value_heads=4,
            attention_hidden_size=128,
            attention_head_dim=32,
            **_SCAN,
        ),
    ),
}

# The recurrent states are the last inputs of the attention projections; drafts are trees.
WINDOWED: dict[str, tuple[str, dict[str, Any]]] = {
    "zaya": (
        "zaya",
        llama(
            layer_types=["hybrid_sliding", "hybrid"],
            num_experts=4,
            num_experts_per_tok=1,
            moe_intermediate_size=32,
            router_hidden_size=32,
            sliding_window=8,
            **HEADS,
        ),
    ),
}

# The recurrent states are part of attention; drafts are chains.
CHAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "inkling": ("inkling_text", llama(logits_mup_width_multiplier=1.0, **_INKLING, **HEADS)),
}
