"""Configurations of tiny models with every rope_type of transformers."""

from __future__ import annotations

from typing import Any

from tests.support.tree_models import EXPERTS, HEADS, REACH, SLIDING, gemma4, llama

# Beyond this number of tokens, the models use other rotary frequencies. Dynamic NTK models end
# there.
SWITCH = 64


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10_000.0, **parameters}


def long_rope(width: int, **parameters: Any) -> dict[str, Any]:
    """Return LongRoPE parameters for heads of 2 * `width` numbers."""
    factors = {
        "short_factor": [1.0 + index / width for index in range(width)],
        "long_factor": [4.0] * width,
    }
    return _rope(
        "longrope", **factors, factor=8.0, original_max_position_embeddings=SWITCH, **parameters
    )


PHI = {"sliding_window": None, "original_max_position_embeddings": SWITCH}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
_BY_LAYER = {"query_pre_attn_scalar": 16, "layer_types": SLIDING, **REACH, **HEADS}

PHI_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
"num_attention_heads": 2, "image_size": 28,
               "patch_size": 14, "crop_size": 28, "image_token_id": 95,
               "feature_layer": -1}  # fmt: skip
PHI_AUDIO = {"hidden_size": 32, "intermediate_size": 48, "num_blocks": 1,
"num_attention_heads": 2, "audio_token_id": 96,
              "ext_pw_out_channel": 32, "nemo_conv_channels": 32}  # fmt: skip

# Every rope_type of transformers, including models with one per kind of layer.
ROTARY: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3_longrope": ("phi3", llama(rope_parameters=long_rope(8), **PHI)),
    "phi3_longrope_sliding": (
        "phi3",
        llama(rope_parameters=long_rope(8), **{**PHI, "sliding_window": 8}),
    ),
    "phimoe_longrope": (
        "phimoe",
        llama(rope_parameters=long_rope(8, short_mscale=1.1, long_mscale=1.3), **PHI, **EXPERTS),
    ),
    "llama_longrope": ("llama", llama(rope_parameters=long_rope(8))),
    "minicpm3_longrope": (
        "minicpm3",
        llama(num_key_value_heads=4, rope_parameters=long_rope(4), **_LATENT),
    ),
    "gemma3_longrope": (
        "gemma3_text",
        llama(
            rope_parameters={"full_attention": long_rope(8), "sliding_attention": _rope("default")},
            **_BY_LAYER,
        ),
    ),
    "llama_dynamic": (
        "llama",
        llama(max_position_embeddings=SWITCH, rope_parameters=_rope("dynamic", factor=2.0)),
    ),
    "gemma3_dynamic": (
        "gemma3_text",
        llama(
            max_position_embeddings=SWITCH,
            **_BY_LAYER,
            rope_parameters={
                "full_attention": _rope("dynamic", factor=4.0),
                "sliding_attention": _rope("default"),
            },
        ),
    ),
    "llama_linear": ("llama", llama(rope_parameters=_rope("linear", factor=4.0))),
    "llama_yarn": (
        "llama",
        llama(rope_parameters=_rope("yarn", factor=8.0, original_max_position_embeddings=SWITCH)),
    ),
    "llama_llama3": (
        "llama",
        llama(
            rope_parameters=_rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=SWITCH,
            )
        ),
    ),
    "gemma4_proportional": ("gemma4_text", gemma4()),
}
