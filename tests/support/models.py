"""Tiny models of many architectures, and tokenizers of 256 tokens."""

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

from tests.support.recurrent_models import BRANCHING, CHAINED, WINDOWED
from tests.support.refused_models import REFUSED
from tests.support.rotary_models import PHI, PHI_AUDIO, PHI_VISION, ROTARY, long_rope
from tests.support.tree_models import CHAINS, HEADS, SLIDING, TREES, gpt2, llama
from tests.support.versions import require_model_type

_TABLE = (
    TREES
    | CHAINS
    | BRANCHING
    | CHAINED
    | WINDOWED
    | REFUSED
    | ROTARY
    | {
        "dory": (
            "dory",
            llama(
                num_hidden_layers=4,
                n_input_layers=1,
                n_recurrent_layers=2,
                n_output_layers=1,
                n_recurrent_loops=2,
                layer_types=SLIDING,
                sliding_window=8,
                **HEADS,
            ),
        ),
        "phi4_multimodal": (
            "phi4_multimodal",
            llama(
                rope_parameters=long_rope(8),
                **PHI,
                vision_config=PHI_VISION,
                audio_config=PHI_AUDIO,
            ),
        ),
        "gpt2_short": ("gpt2", gpt2(vocab_size=256, n_positions=28)),
        "llama_long": ("llama", llama(max_position_embeddings=8192)),
        "flexible": ("llama", llama()),  # a test changes its attention implementation
        "six_words": ("llama", llama(vocab_size=6, hidden_size=32, initializer_range=0.15)),
        "six_words_draft": (
            "llama",
            llama(vocab_size=6, hidden_size=16, num_hidden_layers=1, initializer_range=0.2),
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
    """Return a model with random weights, biases, norm offsets and sinks."""
    model_type, options = _TABLE[name]
    require_model_type(model_type)
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


def with_new_weights(model: Any, seed: int = 7) -> Any:
    """Return a model of the same shape with other random weights."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.copy_(
                torch.randn(weight.shape, generator=generator) * weight.float().std(correction=0)
            )
    return other


def rounded(weight: Any, bits: int) -> Any:
    """Return a tensor rounded to `bits` bits in blocks of 32."""
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
    """Return a tokenizer of single bytes.

    Three control bytes are replaced by special tokens. Few tokens are whole characters.
    """
    return word_tokenizer(
        sorted(ByteLevel.alphabet(), key=lambda char: (ord(char) < 256, ord(char)))[3:]
    )


def piece_tokenizer() -> Any:
    """Return a tokenizer with 256 tokens of one or two ASCII characters.

    Every token sequence is readable text.
    """
    singles = [chr(code) for code in range(33, 127)]
    pairs = [first + second for first in "aeiou\u0120" for second in "bcdfghjklmnprstvwxyzaeiou.,"]
    return word_tokenizer((singles + pairs)[:253])


def word_tokenizer(words: list[str]) -> Any:
    vocabulary = {word: token for token, word in enumerate(["<pad>", "<s>", "</s>", *words])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **special
    )
