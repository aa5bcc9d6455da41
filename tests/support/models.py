"""Tiny models of many architectures with random weights, and two tokenizers."""

from __future__ import annotations

import copy
import functools
from typing import Any

import tokenizers
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    PreTrainedTokenizerFast,
)

VOCAB = 97
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SLIDING = ["sliding_attention"] * 3 + ["full_attention"]


def _llama(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.25,
        **_SPECIAL,
        **changes,
    }


def _gpt2(**changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": VOCAB,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
        "initializer_range": 0.25,
    }
    return {**sizes, **_SPECIAL, **changes}


def _falcon(**changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return {**sizes, "initializer_range": 0.25, **_SPECIAL, **changes}


def _deepseek(**changes: Any) -> dict[str, Any]:
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
    return _llama(num_key_value_heads=4, **attention, **experts, **groups, **changes)


def _gemma4(unified: bool = False, **changes: Any) -> dict[str, Any]:
    """Gemma 4: layers with full attention have heads of another size."""
    own = (
        {} if unified else {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB}
    )
    options = {"layer_types": _SLIDING, "tie_word_embeddings": False, **_REACH, **_HEADS, **own}
    return _llama(**{**options, **changes})


_OPT = {
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_HEADS = {"head_dim": 16}
_REACH = {"sliding_window": 8, "num_hidden_layers": 4}

# name -> (model type, configuration). Windows and chunks are shorter than the prompts, so that they
# matter.
TREES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _llama()),
    "mistral": ("mistral", _llama(sliding_window=8)),
    "mixtral": ("mixtral", _llama(sliding_window=None, **_EXPERTS)),
    "qwen2": ("qwen2", _llama()),
    "qwen2_mixed": ("qwen2", _llama(use_sliding_window=True, max_window_layers=2, **_REACH)),
    "qwen3": ("qwen3", _llama(**_HEADS)),
    "qwen3_moe": (
        "qwen3_moe",
        _llama(
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            mlp_only_layers=[],
            decoder_sparse_step=1,
            **_HEADS,
        ),
    ),
    "gemma": ("gemma", _llama(**_HEADS)),
    "gemma2": ("gemma2", _llama(query_pre_attn_scalar=16, **_REACH, **_HEADS)),
    "gemma3": (
        "gemma3_text",
        _llama(query_pre_attn_scalar=16, layer_types=_SLIDING, **_REACH, **_HEADS),
    ),
    "phi": ("phi", _llama(num_key_value_heads=4)),
    "phi3": ("phi3", _llama(sliding_window=8, original_max_position_embeddings=512)),
    "gpt2": ("gpt2", _gpt2()),
    "gpt_neox": ("gpt_neox", _llama(num_key_value_heads=4)),
    "gptj": ("gptj", _gpt2(rotary_dim=8)),
    "opt": (
        "opt",
        {"vocab_size": VOCAB, "word_embed_proj_dim": 64, "init_std": 0.25, **_OPT, **_SPECIAL},
    ),
    "falcon": ("falcon", _falcon(num_kv_heads=2, new_decoder_architecture=True, alibi=False)),
    "stablelm": ("stablelm", _llama()),
    "olmo2": ("olmo2", _llama()),
    "olmo3": ("olmo3", _llama(**_REACH)),
    "olmoe": ("olmoe", _llama(num_experts=4, num_experts_per_tok=2, num_key_value_heads=4)),
    "granite": ("granite", _llama()),
    "granitemoe": ("granitemoe", _llama(**_EXPERTS)),
    "cohere": ("cohere", _llama()),
    "cohere2": ("cohere2", _llama(layer_types=_SLIDING, **_REACH, **_HEADS)),
    "deepseek_v2": ("deepseek_v2", _deepseek(topk_method="greedy")),
    "deepseek_v3": ("deepseek_v3", _deepseek()),
    "gpt_oss": ("gpt_oss", _llama(**_REACH, **_EXPERTS, **_HEADS)),
    "smollm3": ("smollm3", _llama(num_hidden_layers=4, no_rope_layer_interval=4)),
    "llama4": (
        "llama4_text",
        _llama(
            num_hidden_layers=4,
            attention_chunk_size=8,
            num_local_experts=2,
            num_experts_per_tok=1,
            intermediate_size_mlp=96,
            no_rope_layer_interval=4,
            **_HEADS,
        ),
    ),
    "gpt_bigcode": ("gpt_bigcode", _gpt2(multi_query=True)),
    "starcoder2": ("starcoder2", _llama(sliding_window=8)),
    "nemotron": ("nemotron", _llama()),
    "exaone4": ("exaone4", _llama(sliding_window_pattern=4, **_REACH)),
    "ernie4_5": ("ernie4_5", _llama(**_HEADS)),
    "glm4": ("glm4", _llama(**_HEADS)),
    "hunyuan": ("hunyuan_v1_dense", _llama(**_HEADS)),
    "seed_oss": ("seed_oss", _llama(**_HEADS)),
    "gemma4": ("gemma4_text", _gemma4()),
    "gemma4_shared": (
        "gemma4_text",
        _gemma4(num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2),
    ),
    "gemma4_wide": (
        "gemma4_text",
        _gemma4(attention_k_eq_v=True, num_global_key_value_heads=1, global_head_dim=32),
    ),
    "gemma4_moe": (
        "gemma4_text",
        _gemma4(
            attention_k_eq_v=True,
            enable_moe_block=True,
            num_experts=4,
            top_k_experts=2,
            moe_intermediate_size=32,
        ),
    ),
    "gemma4_unified": ("gemma4_unified_text", _gemma4(unified=True)),
}

# Positions follow the cache slot (ALiBi, or no position ids), so a chain is the only tree that can
# be verified.
CHAINS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon_alibi": (
        "falcon",
        _falcon(new_decoder_architecture=False, multi_query=False, alibi=True),
    ),
    "bloom": (
        "bloom",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 4,
            "initializer_range": 0.25,
            **_SPECIAL,
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
            **_SPECIAL,
        },
    ),
    "roformer": ("roformer", _llama(is_decoder=True)),
}

_MAMBA_HEADS = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v32": ("deepseek_v32", _deepseek(index_topk=8, index_n_heads=2, index_head_dim=16)),
    "mamba": ("mamba", {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 1,
    "state_size": 8}),
    "bamba": ("bamba", _llama(attn_layer_indices=[1], mamba_expand=2, **_MAMBA_HEADS)),
    "recurrent_gemma": ("recurrent_gemma", _llama(num_key_value_heads=1, attention_window_size=8,
    lru_width=64)),
    "t5": ("t5", {"vocab_size": VOCAB, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 1,
    "num_heads": 4}),
    "whisper": ("whisper", {"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 1,
    "decoder_layers": 1, "num_mel_bins": 8,
                            "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                            "encoder_ffn_dim": 32,
                            "decoder_ffn_dim": 32, **_SPECIAL, "decoder_start_token_id": 1}),
    "qwen3_next": ("qwen3_next", _llama(linear_num_key_heads=2, linear_num_value_heads=4,
    linear_key_head_dim=8,
                                        linear_value_head_dim=8, num_experts=4,
                                        num_experts_per_tok=2,
                                        moe_intermediate_size=32,
                                        shared_expert_intermediate_size=32,
                                        layer_types=["linear_attention", "full_attention"],
                                        **_HEADS)),
    "minimax_m3": ("minimax_m3_vl_text", _llama(
        layer_types=["full_attention", "minimax_m3_sparse"], index_block_size=4,
        index_topk_blocks=2, index_local_blocks=1,
        index_n_heads=2, index_head_dim=16, rotary_dim=8, dense_intermediate_size=96,
        num_experts_per_tok=2, num_local_experts=4,
        **_HEADS)),
    "openai-gpt": ("openai-gpt", _gpt2()),
    "xlnet": ("xlnet", {"vocab_size": VOCAB, "d_model": 32, "n_layer": 1, "n_head": 2,
    "d_inner": 48}),
    "reformer": ("reformer", {"vocab_size": VOCAB, "is_decoder": True, "hidden_size": 32,
    "axial_pos_embds": False,
                              "attention_head_size": 16, "num_attention_heads": 2,
                              "attn_layers": ["local"], "num_buckets": 4,
                              "max_position_embeddings": 512, "feed_forward_size": 48}),
    "gemma_both_ways": ("gemma", _llama(use_bidirectional_attention=True, **_HEADS)),
    "cpmant": ("cpmant", {"vocab_size": VOCAB, "hidden_size": 64, "num_attention_heads": 4,
    "dim_head": 16, "dim_ff": 96,
                          "num_hidden_layers": 2}),
}  # fmt: skip

_PICKS = r"selects or compresses keys by blocks \(minimax_m3_sparse layers\)"
REASONS = {
    "deepseek_v32": "selects keys with an indexer", "mamba": "keeps recurrent state",
    "bamba": "keeps recurrent state",
    "recurrent_gemma": "keeps recurrent state", "t5": "an encoder-decoder",
    "whisper": "an encoder-decoder",
    "qwen3_next": r"keeps recurrent state \(linear_attention layers\)", "minimax_m3": _PICKS,
    "openai-gpt": "has no key/value cache", "xlnet": "has no key/value cache",
    "reformer": "has no key/value cache",
    "gemma_both_ways": "sees the whole prompt from each of its tokens",
    "cpmant": "cannot run a draft chain",
}  # fmt: skip

# tokens: beyond it the models below have other rotary frequencies, or, of dynamic NTK, no more
# context
SWITCH = 64


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10_000.0, **parameters}


def _long(width: int, **parameters: Any) -> dict[str, Any]:
    """LongRoPE for heads of 2 * `width` numbers."""
    factors = {
        "short_factor": [1.0 + place / width for place in range(width)],
        "long_factor": [4.0] * width,
    }
    return _rope(
        "longrope", **factors, factor=8.0, original_max_position_embeddings=SWITCH, **parameters
    )


_PHI = {"sliding_window": None, "original_max_position_embeddings": SWITCH}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
_BY_LAYER = {"query_pre_attn_scalar": 16, "layer_types": _SLIDING, **_REACH, **_HEADS}

_PHI_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
"num_attention_heads": 2, "image_size": 28,
               "patch_size": 14, "crop_size": 28, "image_token_id": 95,
               "feature_layer": -1}  # fmt: skip
_PHI_AUDIO = {"hidden_size": 32, "intermediate_size": 48, "num_blocks": 1,
"num_attention_heads": 2, "audio_token_id": 96,
              "ext_pw_out_channel": 32, "nemo_conv_channels": 32}  # fmt: skip

# Every rope_type of transformers, also one per kind of layer.
ROTARY: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3_longrope": ("phi3", _llama(rope_parameters=_long(8), **_PHI)),
    "phi3_longrope_sliding": (
        "phi3",
        _llama(rope_parameters=_long(8), **{**_PHI, "sliding_window": 8}),
    ),
    "phimoe_longrope": (
        "phimoe",
        _llama(rope_parameters=_long(8, short_mscale=1.1, long_mscale=1.3), **_PHI, **_EXPERTS),
    ),
    "llama_longrope": ("llama", _llama(rope_parameters=_long(8))),
    "minicpm3_longrope": (
        "minicpm3",
        _llama(num_key_value_heads=4, rope_parameters=_long(4), **_LATENT),
    ),
    "gemma3_longrope": (
        "gemma3_text",
        _llama(
            rope_parameters={"full_attention": _long(8), "sliding_attention": _rope("default")},
            **_BY_LAYER,
        ),
    ),
    "llama_dynamic": (
        "llama",
        _llama(max_position_embeddings=SWITCH, rope_parameters=_rope("dynamic", factor=2.0)),
    ),
    "gemma3_dynamic": (
        "gemma3_text",
        _llama(
            max_position_embeddings=SWITCH,
            **_BY_LAYER,
            rope_parameters={
                "full_attention": _rope("dynamic", factor=4.0),
                "sliding_attention": _rope("default"),
            },
        ),
    ),
    "llama_linear": ("llama", _llama(rope_parameters=_rope("linear", factor=4.0))),
    "llama_yarn": (
        "llama",
        _llama(rope_parameters=_rope("yarn", factor=8.0, original_max_position_embeddings=SWITCH)),
    ),
    "llama_llama3": (
        "llama",
        _llama(
            rope_parameters=_rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=SWITCH,
            )
        ),
    ),
    "gemma4_proportional": ("gemma4_text", _gemma4()),
}

_TABLE = (
    TREES
    | CHAINS
    | REFUSED
    | ROTARY
    | {
        "dory": (
            "dory",
            _llama(
                num_hidden_layers=4,
                n_input_layers=1,
                n_recurrent_layers=2,
                n_output_layers=1,
                n_recurrent_loops=2,
                layer_types=_SLIDING,
                sliding_window=8,
                **_HEADS,
            ),
        ),
        "phi4_multimodal": (
            "phi4_multimodal",
            _llama(
                rope_parameters=_long(8), **_PHI, vision_config=_PHI_VISION, audio_config=_PHI_AUDIO
            ),
        ),
        "gpt2_short": ("gpt2", _gpt2(vocab_size=256, n_positions=28)),
        "flexible": ("llama", _llama()),  # for a test that changes its attention implementation
        "six_words": ("llama", _llama(vocab_size=6, hidden_size=32, initializer_range=0.15)),
        "six_words_draft": (
            "llama",
            _llama(vocab_size=6, hidden_size=16, num_hidden_layers=1, initializer_range=0.2),
        ),
    }
)
EAGER_ONLY = {"gemma2", "gpt_oss", "gptj", "bloom", "mpt", "roformer"}
CASES = [
    (name, kind)
    for name in TREES
    for kind in ("eager", "sdpa")
    if kind == "eager" or name not in EAGER_ONLY
]
ROTARY_CASES = [(name, "sdpa") for name in ROTARY]
CHAIN_CASES = [
    (name, kind)
    for name in CHAINS
    for kind in ("eager", "sdpa")
    if kind == "eager" or name not in EAGER_ONLY
]


@functools.cache
def make(name: str, implementation: str = "eager") -> Any:
    """The model `name` with random weights, its biases, norms' offsets and sinks not trivial."""
    model_type, options = _TABLE[name]
    config = AutoConfig.for_model(model_type, **options)
    torch.manual_seed(0)
    auto = {"t5": AutoModelForSeq2SeqLM, "whisper": AutoModelForSpeechSeq2Seq}.get(
        model_type, AutoModelForCausalLM
    )
    model = auto.from_config(config, attn_implementation=implementation).eval().float()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1 and not parameter_name.endswith("norm.weight"):
                parameter += torch.randn(parameter.shape, generator=generator) * 0.1
    return model


def redrawn(model: Any, seed: int = 7) -> Any:
    """A model of the same shape with other random weights."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.copy_(
                torch.randn(weight.shape, generator=generator) * weight.float().std(correction=0)
            )
    return other


def rounded(weight: Any, bits: int) -> Any:
    """A tensor rounded to so many bits in blocks of 32 numbers, as quantised checkpoints are."""
    flat = weight.detach().float().flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % 32)).view(-1, 32)
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
    return (
        ((blocks / scale).round() * scale)
        .flatten()[: len(flat)]
        .view(weight.shape)
        .to(weight.dtype)
    )


def byte_tokenizer() -> Any:
    """256 tokens, one per byte; three control bytes gave way to special tokens. Single tokens
    are seldom whole characters.
    """
    return _tokenizer(
        sorted(ByteLevel.alphabet(), key=lambda char: (ord(char) < 256, ord(char)))[3:]
    )


def piece_tokenizer() -> Any:
    """256 tokens of one or two ASCII characters each: any ids are readable text."""
    singles = [chr(code) for code in range(33, 127)]
    pairs = [first + second for first in "aeiou\u0120" for second in "bcdfghjklmnprstvwxyzaeiou.,"]
    return _tokenizer((singles + pairs)[:253])


def _tokenizer(words: list[str]) -> Any:
    vocabulary = {word: place for place, word in enumerate(["<pad>", "<s>", "</s>", *words])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **special
    )
