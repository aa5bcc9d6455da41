"""Small values for the fields of configurations, by the names of the fields."""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 97
WINDOW = 8

# Values, and the names of configuration fields that have them.
_VALUES: tuple[tuple[Any, str], ...] = (
    (VOCAB_SIZE, "vocab_size"),
    (64, "hidden_size d_model n_embd embedding_size lru_width"),
    (96, "intermediate_size ffn_dim n_inner dim_ff dff ffn_hidden_size intermediate_size_mlp"),
    (4, "num_hidden_layers n_layers n_layer num_layers sliding_window_pattern mamba_d_conv"),
    (4, "num_attention_heads n_heads n_head num_heads attention_heads linear_num_value_heads"),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts linear_num_heads"),
    (2, "num_key_value_heads num_kv_heads num_experts_per_tok moe_topk moe_k mamba_expand"),
    (2, "linear_num_key_heads n_mamba_heads index_n_heads type_vocab_size depth eos_token_id"),
    (16, "head_dim dim_head kv_lora_rank qk_nope_head_dim v_head_dim linear_key_head_dim"),
    (16, "linear_value_head_dim linear_head_dim index_head_dim mamba_d_head mamba_head_dim"),
    (16, "query_pre_attn_scalar local_attention"),
    (512, "max_position_embeddings n_positions n_ctx max_seq_len"),
    (32, "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size"),
    (32, "shared_experts_intermediate_size shared_intermediate_size"),
    (1, "n_shared_experts num_shared_experts moe_num_shared_experts first_k_dense_replace"),
    (1, "n_group topk_group mamba_n_groups bos_token_id"),
    (24, "q_lora_rank"),
    (WINDOW, "sliding_window sliding_window_size attention_chunk_size window_size block_size"),
    (WINDOW, "attention_window_size qk_rope_head_dim rotary_dim mamba_n_heads mamba_d_state"),
    (WINDOW, "mamba_chunk_size mamba_dt_rank mamba_num_heads ssm_state_size state_size"),
    (WINDOW, "chunk_size index_topk"),
    (0, "num_mtp_layers num_nextn_predict_layers pad_token_id"),
    (0.25, "initializer_range init_std"),
    (0.0, "dropout attention_dropout resid_pdrop embd_pdrop attn_pdrop hidden_dropout"),
    (0.0, "hidden_dropout_prob attention_probs_dropout_prob"),
    (28, "image_size"),
    (14, "patch_size"),
    (True, "rope_interleave"),
    (False, "use_mamba_kernels"),
)
FIELDS = {name: value for value, names in _VALUES for name in names.split()}

# Fields of vision and audio towers; an image has four patches.
TOWER_FIELDS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "embed_dim": 32,
    "projection_dim": 32,
    "num_hidden_layers": 2,
    "depth": 2,
    "num_attention_heads": 2,
    "num_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "out_hidden_size": 64,
}
