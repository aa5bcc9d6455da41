"""Define the module of an EAGLE-3 head (Li et al. 2025).

The attention of the first layer reads the concatenation of token embeddings and hidden states. The
residual stream carries the hidden states. Submodules have the same names as in published heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

# Classes of the decoder layer, the norm and the rotary embedding, by model type.
_CLASSES: dict[str, tuple[type[nn.Module], type[nn.Module], type[nn.Module]]] = {
    "llama": (
        modeling_llama.LlamaDecoderLayer,
        modeling_llama.LlamaRMSNorm,
        modeling_llama.LlamaRotaryEmbedding,
    ),
    "qwen3": (
        modeling_qwen3.Qwen3DecoderLayer,
        modeling_qwen3.Qwen3RMSNorm,
        modeling_qwen3.Qwen3RotaryEmbedding,
    ),
}


@dataclass(frozen=True, slots=True)
class Eagle3Shape:
    """The architecture of an EAGLE-3 head.

    Attributes:
        layers: Configuration of the head's decoder layers.
        num_states: Number of target layers whose hidden states the head reads.
        target_hidden: Hidden size of the target.
        draft_vocab_size: Number of tokens that the head can predict.
        norm_before_residual: Whether the first layer's residual stream carries normalised states.
        norm_before_fc: Whether to normalise the concatenation of a token's target states.
        fc_norm: Whether to normalise each target state separately.
        norm_output: Whether to normalise an output before it is fed back as the next input.
    """

    layers: PretrainedConfig
    num_states: int
    target_hidden: int
    draft_vocab_size: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class Eagle3FirstLayer(nn.Module):
    """The first decoder layer, which reads token embeddings and hidden states.

    Args:
        shape: Architecture of the head.
    """

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        config: Any = shape.layers
        layer_class, norm_class, _ = _CLASSES[config.model_type]
        layer: Any = layer_class(config, 0)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm, self.hidden_norm = (norm_class(hidden, eps) for _ in range(2))
        self.post_attention_layernorm = norm_class(hidden, eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            wide = nn.Linear(2 * hidden, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)
        self._norm_before_residual = shape.norm_before_residual

    def forward(self, embedded: Tensor, states: Tensor, **inputs: Any) -> Tensor:
        """Return the layer's output, [rows, columns, hidden].

        Args:
            embedded: Embeddings of the tokens, [rows, columns, hidden].
            states: Hidden states, [rows, columns, hidden].
            inputs: Keyword arguments of the attention module.
        """
        normalised = self.hidden_norm(states)
        residual = normalised if self._norm_before_residual else states
        joined = torch.cat((self.input_layernorm(embedded), normalised), dim=-1)
        hidden = residual + self.self_attn(joined, **inputs)[0]
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Eagle3Module(nn.Module):
    """The layers of an EAGLE-3 head, without a KV cache.

    Args:
        shape: Architecture of the head.
    Attributes:
        embed_tokens: Token embedding, usually that of the target. The owner of the module sets it.
    """

    embed_tokens: nn.Embedding

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        config: Any = shape.layers
        layer_class, norm_class, rotary_class = _CLASSES[config.model_type]
        hidden, eps = config.hidden_size, config.rms_norm_eps
        read = shape.num_states * shape.target_hidden
        self.input_norm = norm_class(read, eps) if shape.norm_before_fc else None
        self.fc_norm = (
            nn.ModuleList(norm_class(shape.target_hidden, eps) for _ in range(shape.num_states))
            if shape.fc_norm
            else None
        )
        self.fc = nn.Linear(read, hidden, bias=False)
        following = [layer_class(config, index) for index in range(1, config.num_hidden_layers)]
        self.layers = nn.ModuleList([Eagle3FirstLayer(shape), *following])
        self.norm = norm_class(hidden, eps)
        self.lm_head = nn.Linear(hidden, shape.draft_vocab_size, bias=False)
        self.rotary_emb = rotary_class(config)
        self._norm_output = shape.norm_output

    def fuse(self, states: Tensor) -> Tensor:
        """Project a token's target states to the first layer's input, [..., hidden].

        Args:
            states: Target states of each token, [..., layers, target hidden].
        """
        if self.fc_norm is not None:
            parts = [norm(states[..., index, :]) for index, norm in enumerate(self.fc_norm)]
            states = torch.stack(parts, dim=-2)
        joined = states.flatten(-2)
        fused: Tensor = self.fc(joined if self.input_norm is None else self.input_norm(joined))
        return fused

    def forward(
        self, token_ids: Tensor, states: Tensor, positions: Tensor, **inputs: Any
    ) -> Tensor:
        """Return each token's output, which is also the input state of its child node.

        Args:
            token_ids: Token ids, [rows, columns].
            states: Hidden states for the first layer, [rows, columns, hidden].
            positions: Text position of each token, [rows, columns].
            inputs: Attention mask and cache, under their names in transformers.
        """
        turns = self.rotary_emb(states, position_ids=positions)
        inputs |= {"position_embeddings": turns, "position_ids": positions}
        embedded = self.embed_tokens(token_ids).to(states.dtype)
        hidden: Tensor = self.layers[0](embedded, states, **inputs)
        for layer in self.layers[1:]:
            hidden = layer(hidden, **inputs)
        return self.norm(hidden) if self._norm_output else hidden

    def project(self, outputs: Tensor) -> Tensor:
        """Convert outputs [..., hidden] to logits [..., draft vocabulary]."""
        logits: Tensor = self.lm_head(outputs if self._norm_output else self.norm(outputs))
        return logits
