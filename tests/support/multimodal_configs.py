"""Special tokens and configurations of tiny multimodal models."""

from __future__ import annotations

from typing import Any

IMAGE, VIDEO, START, END, BREAK = "<image>", "<video>", "<start>", "<end>", "<break>"
SPECIAL = ["<pad>", "<s>", "</s>", IMAGE, VIDEO, START, END, BREAK]
VOCAB = 256 + len(SPECIAL)
IDS = {name: index for index, name in enumerate(SPECIAL)}
TEXT_FIELDS = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION_FIELDS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "initializer_range": 0.2,
}
_GRID = {"depth": 1, "num_heads": 2, "hidden_size": 32, "out_hidden_size": 32, "patch_size": 14}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_SECTIONS = {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}}
_GRID_TOKENS = {
    "image_token_id": IDS[IMAGE],
    "video_token_id": IDS[VIDEO],
    "vision_start_token_id": IDS[START],
    "vision_end_token_id": IDS[END],
}
_MARKERS = {"image_start_token_id": IDS[START], "image_end_token_id": IDS[END]}
_GEMMA = {
    "image_token_index": IDS[IMAGE],
    "boi_token_index": IDS[START],
    "eoi_token_index": IDS[END],
    "mm_tokens_per_image": 4,
}
# Model type -> configuration of the text part, the vision part and the model.
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen2_5_vl": (
        {**_SECTIONS},
        {**_GRID, "window_size": 56, "fullatt_block_indexes": [0], "intermediate_size": 48},
        _GRID_TOKENS,
    ),
    "qwen3_vl": (
        {**_SECTIONS},
        {
            **_GRID,
            "depth": 2,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1],
            "intermediate_size": 48,
        },
        _GRID_TOKENS,
    ),
    "qwen3_5": (
        {
            "rope_parameters": {**_SECTIONS["rope_parameters"], "partial_rotary_factor": 0.5},
            "head_dim": 16,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
        {**_GRID, "num_position_embeddings": 16, "intermediate_size": 48},
        _GRID_TOKENS,
    ),
    "glm4v": (
        {"rope_parameters": {**_SECTIONS["rope_parameters"], "partial_rotary_factor": 1.0}},
        {**_GRID, "intermediate_size": 48, "image_size": 28},
        {**_MARKERS, "image_token_id": IDS[IMAGE], "video_token_id": IDS[VIDEO]},
    ),
    "gemma3": (
        {
            "sliding_window": 8,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
        {**VISION_FIELDS, "model_type": "siglip_vision_model"},
        _GEMMA,
    ),
    "gemma4": (
        {
            "sliding_window": 8,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "global_head_dim": 16,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "use_bidirectional_attention": "vision",
        },
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "position_embedding_size": 64,
        },
        {**_MARKERS, "image_token_id": IDS[IMAGE], "video_token_id": IDS[VIDEO]},
    ),
    "smolvlm": (
        {"model_type": "llama"},
        {**VISION_FIELDS, "num_channels": 3},
        {"image_token_id": IDS[IMAGE], "scale_factor": 2, "pad_token_id": 0},
    ),
    "lfm2_vl": (
        {
            "model_type": "lfm2",
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention"] * 2,
            "block_multiple_of": 16,
        },
        {**VISION_FIELDS, "model_type": "siglip2_vision_model", "num_patches": 16},
        {"image_token_id": IDS[IMAGE], "projector_hidden_size": 32},
    ),
    "mistral3": (
        {"model_type": "mistral"},
        {**VISION_FIELDS, "model_type": "pixtral", "image_size": 56},
        {"image_token_index": IDS[IMAGE], "spatial_merge_size": 1},
    ),
    "llava": (
        {"model_type": "llama"},
        {**VISION_FIELDS, "model_type": "clip_vision_model"},
        {"image_token_index": IDS[IMAGE], "vision_feature_layer": -1},
    ),
    "internvl": (
        {"model_type": "qwen2"},
        {**VISION_FIELDS, "image_size": [28, 28], "patch_size": [14, 14]},
        {"image_token_id": IDS[IMAGE], "image_seq_length": 1},
    ),
}
