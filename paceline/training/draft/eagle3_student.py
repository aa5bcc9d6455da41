"""Train an EAGLE-3 head in the format of the speculators library (Li et al. 2025).

In decoding, draft tokens have no target states. For a draft token, the head therefore reads its own
output at the previous token. Training does the same (training-time test, section 3.2), so the head
runs once per chain position. The head is trained up to twice at each text position: after a token
that the target has chosen, and after a random number of draft tokens. The LM head is a copy of the
target's LM head and is not trained, as in speculators.

During training, the states are scaled to unit size. The saved weights expect unscaled states.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, PreTrainedModel

from paceline.errors import UnsupportedModelError
from paceline.model.eagle.modules import embedding_and_lm_head
from paceline.model.forward_arguments import GENERATE_CACHE
from paceline.state_heads.eagle3 import default_layers
from paceline.state_heads.eagle3_export import Eagle3Card, write_eagle3
from paceline.state_heads.eagle3_module import Eagle3Module, Eagle3Shape
from paceline.state_heads.layer_configs import layer_config
from paceline.training.draft import settings
from paceline.training.draft.chains import Chains, expected_chains
from paceline.training.draft.chunk_states import (
    least_squares,
    loss_shares,
    padded,
    state_pairs,
)
from paceline.training.draft.evaluate import agreement_by_position
from paceline.training.draft.independent_student import shrink_residuals
from paceline.training.draft.loss import states_loss
from paceline.training.draft.rows import Rows
from paceline.training.draft.sampled_head import SampledHead
from paceline.training.draft.settings import DraftTraining
from paceline.training.optimisers import product_dtype
from paceline.training.text_chunks import TextChunk, token_counts


class Eagle3Student:
    """An EAGLE-3 head that is being trained.

    Args:
        target: Target model, whose hidden states the head reads.
        config: Settings of the training.
        token_ids: Token ids of the reduced draft vocabulary, ascending.
        chunks: Text chunks to train on, with the target's hidden states.
    Attributes:
        model: The head, in float32. Training does not change the head's embedding and LM head.
    Raises:
        UnsupportedModelError: The target's LM head has a bias.
    """

    model: Eagle3Module

    def __init__(
        self,
        target: PreTrainedModel,
        config: DraftTraining,
        token_ids: NDArray[np.int64],
        chunks: Sequence[TextChunk],
    ) -> None:
        self._config, self._device = config, target.device
        self._token_ids = torch.from_numpy(token_ids).to(self._device)
        self._card = _card(target, config)
        self.model = _first_module(target, self._card, self._token_ids, config.seed)
        self._dtype = product_dtype(self._device)
        self._state_scale = torch.ones(())
        with torch.no_grad():
            self._start_linear(chunks)
        head = self.model.lm_head.weight
        counts = token_counts(chunks, int(self._card.layers.vocab_size))
        self._head = SampledHead(head, None, self._token_ids, counts, self._dtype)

    def loss(self, chunks: Sequence[TextChunk], step: int) -> Tensor:
        """Return the weighted mean cross-entropy against the target, in nats.

        Args:
            chunks: Text chunks of the batch.
            step: Index of the training step, which seeds the random choices.
        """
        random = np.random.default_rng((self._config.seed, step))
        chain, width = self._config.length, max(map(len, chunks))
        first = min(chunk.first for chunk in chunks)
        rows = _from_second_token(
            Rows.for_training(width - 1, chain, int(random.integers(chain)), max(1, first - 1))
        )
        token_ids, states = (tensor.to(self._device) for tensor in padded(chunks))
        reduced = self._dtype != torch.float32
        with torch.autocast(self._device.type, self._dtype, enabled=reduced):
            outputs = self.model.norm(self._outputs(token_ids, states, rows))
        present, shares = loss_shares(rows, chunks)
        shares = shares.to(self._device)
        text, row = present.nonzero().T.to(self._device)
        target = states[text, rows.positions.to(self._device)[row], 0]
        weight, bias = self._head.sample(token_ids, random)
        return states_loss(outputs[text, row], target, weight, bias, shares / shares.sum())

    @torch.no_grad()
    def acceptance(self, held_out: Sequence[TextChunk], length: int) -> Chains:
        """Compute the acceptance of chains of `length` tokens on held-out answers."""
        return expected_chains([self._agreement(chunk, length) for chunk in held_out], length)

    def save(self, folder: Path) -> None:
        """Write the head in the format of the speculators library."""
        weights = self.model.state_dict()
        weights["fc.weight"] = weights["fc.weight"] * self._state_scale.flatten()
        write_eagle3(folder, self._card, weights, self._token_ids.cpu())

    def _agreement(self, chunk: TextChunk, length: int) -> NDArray[np.float64]:
        rows = _from_second_token(
            Rows.for_evaluation(len(chunk) - 1, length, max(1, chunk.first - 1))
        )
        token_ids, states = (tensor.to(self._device) for tensor in padded([chunk]))
        outputs = self._outputs(token_ids, states, rows)[0]

        def guess(drafting: Tensor) -> Tensor:
            logits = self.model.project(outputs[drafting.to(self._device)])
            return self._token_ids[logits.argmax(-1)]

        return agreement_by_position(rows, chunk, length, guess)

    def _outputs(self, token_ids: Tensor, states: Tensor, rows: Rows) -> Tensor:
        """Return the head's output for each row, [b, rows, hidden].

        Args:
            token_ids: Token ids of b texts with t tokens each, [b, t].
            states: The target's states after each token, [b, t, 1 + layers, hidden].
            rows: Rows to compute, sorted by their number of draft tokens. No row is at the first
                token of a text.
        """
        cache, end = DynamicCache(), 0
        outputs: list[Tensor] = []
        positions, mask = rows.positions.to(self._device), rows.mask.to(self._device)
        index = torch.zeros(token_ids.shape[1], dtype=torch.long, device=self._device)
        for count in rows.guessed.bincount().tolist():
            begin, end = end, end + count
            own = positions[begin:end]
            if outputs:  # at a draft token, the head reads its output at the previous token
                read = outputs[-1][:, index[own - 1]]
            else:
                read = self.model.fuse(states[:, own - 1, 1:].float() * self._state_scale)
            index[own] = torch.arange(count, device=self._device)
            inputs = {GENERATE_CACHE: cache, "attention_mask": mask[None, None, begin:end, :end]}
            ids, columns = token_ids[:, own], own.expand(len(token_ids), -1)
            outputs.append(self.model(ids, read, columns, **inputs))
        return torch.cat(outputs, dim=1)

    def _start_linear(self, chunks: Sequence[TextChunk]) -> None:
        """Choose the scale of the states; fit the layer `fc` to predict the next state."""
        _, before, following = (tensor.to(self._device) for tensor in state_pairs(chunks))
        hidden = following.shape[1]
        read = before[:, hidden:]
        self._state_scale = 1 / read.square().mean(0).sqrt().clamp(min=1e-6)
        size = following.square().mean(0).sqrt().clamp(min=1e-6)
        self.model.fc.weight.copy_(least_squares(read * self._state_scale, following / size))
        norm: Any = self.model.norm
        norm.weight.copy_(size)
        self._state_scale = self._state_scale.view(-1, hidden)


def _from_second_token(rows: Rows) -> Rows:
    """Sort rows by their number of draft tokens, and shift their positions by one.

    The head starts at the second token of a text, because no state precedes the first token.
    """
    order = rows.guessed.argsort(stable=True)
    return Rows(rows.positions[order] + 1, rows.guessed[order], rows.mask[order][:, order])


def eagle3_layers(target: PreTrainedModel) -> tuple[int, ...]:
    """Return the target layers whose inputs a new head reads.

    A new head reads the same layers as published heads. If the target has too few layers for this
    choice, the head reads the inputs of the first, the middle and the last layer.
    """
    count = target.config.get_text_config(decoder=True).num_hidden_layers
    layers = default_layers(target)
    if len(set(layers)) == len(layers) and layers == tuple(sorted(layers)):
        return layers
    return tuple(sorted({0, count // 2, count - 1}))


def _card(target: PreTrainedModel, config: DraftTraining) -> Eagle3Card:
    text: Any = target.config.get_text_config(decoder=True)
    hidden = embedding_and_lm_head(target)[0].embedding_dim
    heads = getattr(text, "num_attention_heads", None) or max(1, hidden // settings.EAGLE3_HEAD)
    size = getattr(text, "head_dim", None) or max(1, hidden // heads)
    neurons = getattr(text, "intermediate_size", None)
    shape = LlamaConfig(
        vocab_size=text.vocab_size,
        hidden_size=hidden,
        num_hidden_layers=config.layers or settings.EAGLE3_LAYERS,
        head_dim=size,
        intermediate_size=config.neurons or (neurons if isinstance(neurons, int) else 4 * hidden),
        num_attention_heads=heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        max_position_embeddings=text.max_position_embeddings,
        rms_norm_eps=settings.EAGLE3_NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Eagle3Card(
        layer_config(shape.to_dict()),
        eagle3_layers(target),
        target.config.name_or_path,
        tuple(target.config.architectures or (type(target).__name__,)),
        config.length,
    )


def _first_module(
    target: PreTrainedModel, card: Eagle3Card, token_ids: Tensor, seed: int
) -> Eagle3Module:
    """Build the initial head in float32, with the target's embedding and LM head."""
    embedding, head = embedding_and_lm_head(target)
    if head.bias is not None:
        raise UnsupportedModelError(
            f"{type(target).__name__}: got an LM head with a bias, which the format of EAGLE-3"
            " heads does not support. Train a draft of another kind."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Eagle3Module(
            Eagle3Shape(
                card.layers,
                len(card.target_layers),
                head.in_features,
                len(token_ids),
                norm_before_residual=True,
            )
        )
    shrink_residuals(module.layers)
    module = module.to(target.device)
    module.lm_head.weight = nn.Parameter(head.weight.detach()[token_ids].float(), False)
    table = embedding.weight.detach()
    module.embed_tokens = nn.Embedding.from_pretrained(table)
    return module
