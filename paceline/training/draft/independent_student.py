"""Train an independent draft model: a small Llama with the target's vocabulary.

The input and output embeddings share one matrix. Its initial value is the projection of the
target's embedding onto the embedding's principal components.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from paceline.training.draft import settings
from paceline.training.draft.batches import TextBatch, collated
from paceline.training.draft.chains import Chains, expected_chains
from paceline.training.draft.evaluate import agreements
from paceline.training.draft.folder import save_draft
from paceline.training.draft.loss import distillation_loss
from paceline.training.draft.settings import DraftTraining
from paceline.training.text_chunks import TextChunk


class IndependentStudent:
    """An independent draft model that is being trained.

    Args:
        target: Target model.
        config: Settings of the training.
        token_ids: Token ids of the reduced draft vocabulary, ascending.
    Attributes:
        model: The draft model, in float32.
    """

    def __init__(
        self, target: PreTrainedModel, config: DraftTraining, token_ids: NDArray[np.int64]
    ) -> None:
        self.model = first_model(target, config).to(target.device)
        self._token_ids = torch.from_numpy(token_ids).to(self.model.device)
        self._vocabulary_index = np.full(self.model.config.vocab_size, -1, dtype=np.int64)
        self._vocabulary_index[token_ids] = np.arange(len(token_ids))

    def loss(self, chunks: Sequence[TextChunk], step: int) -> Tensor:
        """Return the mean cross-entropy against the training targets, in nats.

        At each position, the training target is the target model's recorded distribution, or the
        next token of the text if no distribution was recorded.

        Args:
            chunks: Text chunks of the batch.
            step: Index of the training step, which has no effect on this loss.
        """
        batch = collated(chunks, self._vocabulary_index)
        batch = TextBatch(*(tensor.to(self.model.device) for tensor in batch))
        hidden: Tensor = self.model.get_decoder()(
            input_ids=batch.token_ids, use_cache=False
        ).last_hidden_state
        weight = self.model.get_input_embeddings().weight[self._token_ids]
        return distillation_loss(
            hidden.flatten(0, 1)[batch.positions], weight, batch.targets, batch.probs
        )

    def save(self, folder: Path) -> None:
        """Write the draft model to an existing folder, in bfloat16."""
        save_draft(self.model, self._token_ids.tolist(), folder)

    def acceptance(self, held_out: Sequence[TextChunk], length: int) -> Chains:
        """Compute the acceptance of chains of `length` tokens on held-out answers."""
        return expected_chains(agreements(self.model, held_out, self._token_ids), length)


def first_model(target: PreTrainedModel, config: DraftTraining) -> PreTrainedModel:
    """Build the initial draft model, in float32."""
    target_config = target.config.get_text_config(decoder=True)
    hidden, layers = (
        config.hidden or settings.INDEPENDENT_HIDDEN,
        config.layers or settings.INDEPENDENT_LAYERS,
    )
    heads = next(
        count for count in range(hidden // settings.HEAD_SIZE + 1, hidden) if hidden % count == 0
    )
    special_tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    shape = LlamaConfig(
        vocab_size=target_config.vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        head_dim=settings.HEAD_SIZE,
        intermediate_size=config.neurons or 4 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=target_config.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        dtype="float32",
        initializer_range=settings.INDEPENDENT_DEVIATION,
        **{name: getattr(target_config, name, None) for name in special_tokens},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model: Any = LlamaForCausalLM(shape)
    shrink_residuals(model.model.layers)
    with torch.no_grad():
        embedding = principal(target.get_input_embeddings().weight.detach().float(), hidden)
        model.get_input_embeddings().weight.copy_(
            embedding * (settings.EMBEDDING_DEVIATION / embedding.std())
        )
    draft: PreTrainedModel = model
    return draft


@torch.no_grad()
def shrink_residuals(layers: Iterable[Any]) -> None:
    """Scale down the weights whose outputs enter the residual stream, as in GPT-2."""
    layers = list(layers)
    scale = (2 * len(layers)) ** -0.5
    for layer in layers:
        layer.self_attn.o_proj.weight.mul_(scale)
        layer.mlp.down_proj.weight.mul_(scale)


def principal(rows: Tensor, size: int) -> Tensor:
    """Project rows [n, d] onto their first `size` principal axes, without centring.

    The result has the shape [n, size]. If `size` exceeds d, the remaining columns are zero.
    """
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    projected = rows @ vectors[:, values.argsort(descending=True)[:size]]
    return torch.nn.functional.pad(projected, (0, size - projected.shape[1]))
