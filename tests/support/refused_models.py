"""Configurations of tiny models that are refused, and the reasons."""

from __future__ import annotations

from typing import Any

from tests.support.tree_models import HEADS, SPECIAL, VOCAB, deepseek, gpt2, llama

REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v32": ("deepseek_v32", deepseek(index_topk=8, index_n_heads=2, index_head_dim=16)),
    "recurrent_gemma": ("recurrent_gemma", llama(num_key_value_heads=1, attention_window_size=8,
    lru_width=64)),
    "t5": ("t5", {"vocab_size": VOCAB, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 1,
    "num_heads": 4}),
    "whisper": ("whisper", {"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 1,
    "decoder_layers": 1, "num_mel_bins": 8,
                            "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                            "encoder_ffn_dim": 32,
                            "decoder_ffn_dim": 32, **SPECIAL, "decoder_start_token_id": 1}),
    "minimax_m3": ("minimax_m3_vl_text", llama(
        layer_types=["full_attention", "minimax_m3_sparse"], index_block_size=4,
        index_topk_blocks=2, index_local_blocks=1,
        index_n_heads=2, index_head_dim=16, rotary_dim=8, dense_intermediate_size=96,
        num_experts_per_tok=2, num_local_experts=4,
        **HEADS)),
    "openai-gpt": ("openai-gpt", gpt2()),
    "xlnet": ("xlnet", {"vocab_size": VOCAB, "d_model": 32, "n_layer": 1, "n_head": 2,
    "d_inner": 48}),
    "reformer": ("reformer", {"vocab_size": VOCAB, "is_decoder": True, "hidden_size": 32,
    "axial_pos_embds": False,
                              "attention_head_size": 16, "num_attention_heads": 2,
                              "attn_layers": ["local"], "num_buckets": 4,
                              "max_position_embeddings": 512, "feed_forward_size": 48}),
    "gemma_both_ways": ("gemma", llama(use_bidirectional_attention=True, **HEADS)),
    "cpmant": ("cpmant", {"vocab_size": VOCAB, "hidden_size": 64, "num_attention_heads": 4,
    "dim_head": 16, "dim_ff": 96,
                          "num_hidden_layers": 2}),
}  # fmt: skip

_PICKS = r"selects or compresses keys by blocks \(minimax_m3_sparse layers\)"
REASONS = {
    "deepseek_v32": "selects keys with an indexer",
    # The configuration of transformers 5.19 has another name for the recurrent layers.
    "recurrent_gemma": "in a cache class of its own|outside transformers' cache layers",
    "t5": "an encoder-decoder",
    "whisper": "an encoder-decoder",
    "minimax_m3": _PICKS,
    "openai-gpt": "has no key/value cache", "xlnet": "has no key/value cache",
    "reformer": "has no key/value cache",
    "gemma_both_ways": "sees the whole prompt from each of its tokens",
    "cpmant": "cannot run a draft chain",
}  # fmt: skip
