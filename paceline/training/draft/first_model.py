"""The draft before training: a small Llama of the target's vocabulary, with the target's
embedding in fewer dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from paceline.training.draft.settings import HEAD_SIZE, DraftTraining

_HIDDEN, _LAYERS = 96, 3
_DEVIATION, _EMBEDDED = 0.04, 0.06  # of the first weights, and of the embedding's


def first_model(target: PreTrainedModel, config: DraftTraining) -> PreTrainedModel:
    """Return an untrained draft in float32. Input and output embedding are one, and begin as the
    target's, projected.
    """
    theirs = target.config.get_text_config(decoder=True)
    hidden, layers = config.hidden or _HIDDEN, config.layers or _LAYERS
    heads = next(count for count in range(hidden // HEAD_SIZE + 1, hidden) if hidden % count == 0)
    shape = LlamaConfig(
        vocab_size=theirs.vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        head_dim=HEAD_SIZE,
        intermediate_size=config.neurons or 4 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=theirs.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        dtype="float32",
        initializer_range=_DEVIATION,
        **_ends(target),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model: Any = LlamaForCausalLM(shape)
    scale = (2 * layers) ** -0.5  # what adds to the residual stream begins small
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(scale)
            layer.mlp.down_proj.weight.mul_(scale)
        embedding = principal(target.get_input_embeddings().weight.detach().float(), hidden)
        model.get_input_embeddings().weight.copy_(embedding * (_EMBEDDED / embedding.std()))
    made: PreTrainedModel = model
    return made


def principal(rows: Tensor, size: int) -> Tensor:
    """Return [n, d] in the `size` dimensions that keep most of it, the mean included: [n, size];
    zeros where d is less.
    """
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    found = rows @ vectors[:, values.argsort(descending=True)[:size]]
    return torch.nn.functional.pad(found, (0, size - found.shape[1]))


def _ends(target: PreTrainedModel) -> dict[str, Any]:
    """Return the special tokens, as the target names them."""
    theirs = target.config.get_text_config(decoder=True)
    return {
        name: getattr(theirs, name, None)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
