"""Train a draft model that reads the target's hidden states (EAGLE).

The method follows Li et al. (2024), section 3.2, with three changes:

- The draft model is trained up to twice at every position of a text: after a token that the target
  has chosen, and after draft tokens. Draft tokens have no target states.
- The loss compares the draft distribution with the target's full distribution, which is computed
  from the target's hidden state.
- The initial weights of the input layer come from a linear least-squares fit that predicts the
  target's next hidden state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from transformers import LlamaConfig, PreTrainedModel

from paceline.model.eagle.checkpoint import build
from paceline.model.eagle.modules import READS, attach, embedding_and_lm_head
from paceline.model.identity import Sketch
from paceline.training.draft import settings
from paceline.training.draft.chains import Chains, expected_chains
from paceline.training.draft.chunk_states import (
    least_squares,
    loss_shares,
    padded,
    state_pairs,
)
from paceline.training.draft.evaluate import guesses_agree
from paceline.training.draft.folder import save_draft
from paceline.training.draft.independent_student import shrink_residuals
from paceline.training.draft.loss import states_loss
from paceline.training.draft.rows import Rows, hidden_of_rows, shifted
from paceline.training.draft.sampled_head import SampledHead
from paceline.training.draft.settings import DraftTraining
from paceline.training.optimisers import product_dtype
from paceline.training.text_chunks import TextChunk, token_counts


class EagleStudent:
    """A draft model in training that reads the target's hidden states.

    Args:
        target: Target model, whose hidden states the draft model reads.
        name: Name of the target, for the draft model's configuration.
        config: Settings of the training.
        token_ids: Token ids of the reduced draft vocabulary, ascending.
        chunks: Chunks of training text, with the target's hidden states.
    Attributes:
        model: The draft model, in float32.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        name: str,
        config: DraftTraining,
        token_ids: NDArray[np.int64],
        chunks: Sequence[TextChunk],
    ) -> None:
        self._config, self._token_ids = config, token_ids
        self.model = _first_model(target, name, config, token_ids).to(target.device)
        attach(self.model, target)
        with torch.no_grad():
            self._start_linear(target, chunks)
        self._dtype = product_dtype(self.model.device)
        head: Any = self.model.get_output_embeddings()
        self._out: Any = head.out
        self._head = SampledHead(
            head.kept,
            head.added,
            head.token_ids,
            token_counts(chunks, head.vocab_size),
            self._dtype,
        )

    def loss(self, chunks: Sequence[TextChunk], step: int) -> Tensor:
        """Return the weighted mean cross-entropy against the target, in nats.

        Args:
            chunks: Text chunks of the batch.
            step: Index of the training step, which seeds the random choices.
        """
        random = np.random.default_rng((self._config.seed, step))
        chain, width, device = self._config.length, max(map(len, chunks)), self.model.device
        first = min(chunk.first for chunk in chunks)
        rows = Rows.for_training(width, chain, int(random.integers(chain)), first)
        unread = int(random.integers(width)) if random.random() < settings.UNREAD_SHARE else 0
        token_ids, states = (tensor.to(device) for tensor in padded(chunks))
        embedding = self._in_product_dtype(self.model.get_input_embeddings())
        decoder = self._in_product_dtype(self.model.get_decoder())
        hidden = hidden_of_rows(embedding, decoder, token_ids, shifted(states), rows, unread)
        drafted = self._in_product_dtype(self._out)(hidden)
        present, shares = loss_shares(rows, chunks)
        shares = shares.to(device)
        text, row = present.nonzero().T.to(device)
        target = states[text, rows.positions.to(device)[row], 0]
        weight, bias = self._head.sample(token_ids, random)
        return states_loss(drafted[text, row], target, weight, bias, shares / shares.sum())

    def _in_product_dtype(self, module: nn.Module) -> Callable[..., Any]:
        """Return a function that runs the module with its weights in `product_dtype`."""
        weights = {
            name: weight.to(self._dtype)
            for name, weight in module.state_dict(keep_vars=True).items()
        }
        return lambda *args, **named: functional_call(module, weights, args, named)

    def save(self, folder: Path) -> None:
        """Write the draft model to an existing folder, in bfloat16."""
        save_draft(self.model, self._token_ids.tolist(), folder)

    def acceptance(self, held_out: Sequence[TextChunk], length: int) -> Chains:
        """Compute the acceptance of chains of `length` tokens on held-out answers."""
        return expected_chains(
            [guesses_agree(self.model, chunk, length) for chunk in held_out], length
        )

    def _start_linear(self, target: PreTrainedModel, chunks: Sequence[TextChunk]) -> None:
        """Scale the inputs to unit size; fit the input layer to predict the next state."""
        embedding: Any = self.model.get_input_embeddings()
        norm: Any = self.model.get_decoder().norm
        tokens, states, following = (tensor.to(self.model.device) for tensor in state_pairs(chunks))
        table = embedding_and_lm_head(target)[0].weight.detach()
        sizes = states.square().mean(0).sqrt().clamp(min=1e-6)
        size = sizes[: following.shape[1]]
        embedding.state_scale.copy_(1 / sizes)
        embedding.token_scale.fill_(1 / float(table.float().square().mean().sqrt()))
        if norm.weight.shape != size.shape:
            return
        norm.weight.copy_(size)
        inputs = torch.cat((table[tokens].float() * embedding.token_scale, states / sizes), dim=1)
        width = table.shape[1]
        embedding.read.weight.copy_(least_squares(inputs, following / size))
        embedding.unread.weight.copy_(least_squares(inputs[:, :width], following / size))
        embedding.unread.bias.zero_()


def _first_model(
    target: PreTrainedModel, name: str, config: DraftTraining, token_ids: NDArray[np.int64]
) -> PreTrainedModel:
    """Build the initial draft model in float32, with small random layer weights."""
    target_config = target.config.get_text_config(decoder=True)
    embedding, head = embedding_and_lm_head(target)
    hidden = config.hidden or settings.HEAD_SIZE * max(
        1, round(head.in_features / settings.HEAD_SIZE)
    )
    size = settings.HEAD_SIZE * (1 + (hidden % (2 * settings.HEAD_SIZE) == 0))
    heads = max(1, hidden // size)
    shape = LlamaConfig(
        vocab_size=target_config.vocab_size,
        hidden_size=hidden,
        num_hidden_layers=config.layers or settings.EAGLE_LAYERS,
        head_dim=size,
        intermediate_size=config.neurons or 64 * max(1, round(hidden / 48)),
        num_attention_heads=heads,
        num_key_value_heads=heads // 3 if heads % 3 == 0 else heads,
        max_position_embeddings=target_config.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=False,
        dtype="float32",
        initializer_range=settings.EAGLE_DEVIATION,
    )
    reads = {
        "target": name,
        "sketch": Sketch.from_model(target).encode(),
        "embedding": embedding.embedding_dim,
        "states": head.in_features,
        "layers": middle_layers(target, config.reads_at),
        "depth": target_config.num_hidden_layers,
    }
    setattr(shape, READS, reads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model: PreTrainedModel = build(shape, token_ids.tolist())
    shrink_residuals(model.get_decoder().layers)
    return model


def middle_layers(target: PreTrainedModel, reads_at: float) -> tuple[int, ...]:
    """Return the target layer whose input a draft model also reads, if any.

    Args:
        target: Target model.
        reads_at: Depth of the layer, as a fraction of the target's layers; 0 reads no layer.
    """
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    return (min(depth - 1, round(reads_at * depth)),) if reads_at else ()
