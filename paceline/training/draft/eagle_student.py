"""A draft that reads the target's hidden states, while it is trained (EAGLE, Li et al. 2024,
section 3.2).

Each place of a text is learnt as it is behind the target's newest token, and as it is behind
guesses, so that the draft is used to having no state there. What it is to say is all that the
target says there, worked out from the target's state. The first layer's input begins as the linear
guess, by least squares, of the state to come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from paceline.training.draft.chains import Chains, expected_chains
from paceline.training.draft.evaluate import guesses_agree
from paceline.training.draft.loss import states_loss
from paceline.training.draft.rows import Rows, hidden_of_rows, shifted
from paceline.training.draft.sampled_head import SampledHead
from paceline.training.draft.settings import HEAD_SIZE, DraftTraining
from paceline.training.optimisers import product_dtype
from paceline.training.text_chunks import TextChunk, token_counts

# of places in the loss, by how many guesses they are behind; the last counts for more
_SHARES = (1.0, 0.6, 0.5, 0.4)
_IN_PROMPTS = 0.3  # so much of it has a place of a prompt, which no draft will be asked about
# share of the batches that read no state of some first tokens, as of a prefix that was in the cache
_UNREAD = 0.1
# that least squares takes; of them, how many would have no state to come
_PAIRS, _RIDGE = (60_000, 100.0)
_LAYERS = 2
_DEVIATION = 0.03  # of the first weights


class EagleStudent:
    """Such a draft.

    Args:
        target: whose states it reads. learnt: stretches with their states.
        kept: tokens of its reduced vocabulary, ascending.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        name: str,
        config: DraftTraining,
        kept: NDArray[np.int64],
        learnt: Sequence[TextChunk],
    ) -> None:
        self._config = config
        self.model = _first_model(target, name, config, kept).to(target.device)
        attach(self.model, target)
        with torch.no_grad():
            self._begin(target, learnt)
        self._dtype = product_dtype(self.model.device)
        head: Any = self.model.get_output_embeddings()
        self._out: Any = head.out
        self._head = SampledHead(head, token_counts(learnt, head.vocab_size), self._dtype)

    def loss(self, stretches: Sequence[TextChunk], number: int) -> Tensor:
        """Return the weighted mean cross-entropy with what the target says."""
        random = np.random.default_rng((self._config.seed, number))
        chain, width, device = self._config.length, max(map(len, stretches)), self.model.device
        rows = Rows.learnt(
            width, chain, int(random.integers(chain)), min(one.first for one in stretches)
        )
        unread = int(random.integers(width)) if random.random() < _UNREAD else 0
        token_ids, states = (one.to(device) for one in _padded(stretches, width))
        embedding, decoder = self.model.get_input_embeddings(), self.model.get_decoder()
        hidden = hidden_of_rows(
            self._in_dtype(embedding),
            self._in_dtype(decoder),
            token_ids,
            shifted(states),
            rows,
            unread,
        )
        made = self._in_dtype(self._out)(hidden)
        lengths, firsts = torch.tensor([(len(one), one.first) for one in stretches]).T[:, :, None]
        there = rows.places < lengths
        of_rows = torch.tensor(_SHARES)[rows.guessed.clamp(max=len(_SHARES) - 1)]
        shares = torch.where(rows.places + 1 < firsts, _IN_PROMPTS * of_rows, of_rows)[there].to(
            device
        )
        at = there.nonzero().T.to(device)
        theirs = states[at[0], rows.places.to(device)[at[1]], 0]
        weight, bias = self._head.drawn(token_ids, random)
        return states_loss(made[at[0], at[1]], theirs, weight, bias, shares / shares.sum())

    def _in_dtype(self, module: nn.Module) -> Callable[..., Any]:
        """Return what the module does with its weights in the dtype of products; they themselves
        learn in float32.
        """
        weights = {
            name: weight.to(self._dtype)
            for name, weight in module.state_dict(keep_vars=True).items()
        }
        return lambda *args, **named: functional_call(module, weights, args, named)

    def judge(self, held_out: Sequence[TextChunk], length: int) -> Chains:
        """Return what its chains are worth."""
        return expected_chains([guesses_agree(self.model, one, length) for one in held_out], length)

    def _begin(self, target: PreTrainedModel, learnt: Sequence[TextChunk]) -> None:
        """Bring the inputs to a size of about 1, and begin with the linear guess of the state to
        come, before the last norm.
        """
        embedding: Any = self.model.get_input_embeddings()
        norm: Any = self.model.get_decoder().norm
        tokens, states, following = (one.to(self.model.device) for one in _pairs(learnt))
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
        embedding.read.weight.copy_(_least_squares(inputs, following / size))
        embedding.unread.weight.copy_(_least_squares(inputs[:, :width], following / size))
        embedding.unread.bias.zero_()


def _first_model(
    target: PreTrainedModel, name: str, config: DraftTraining, kept: NDArray[np.int64]
) -> PreTrainedModel:
    """Return a draft in float32 whose layers are random, but do little."""
    theirs = target.config.get_text_config(decoder=True)
    embedding, head = embedding_and_lm_head(target)
    hidden = config.hidden or HEAD_SIZE * max(1, round(head.in_features / HEAD_SIZE))
    size = HEAD_SIZE * (1 + (hidden % (2 * HEAD_SIZE) == 0))
    layers = config.layers or _LAYERS
    heads = max(1, hidden // size)
    shape = LlamaConfig(
        vocab_size=theirs.vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        head_dim=size,
        intermediate_size=config.neurons or 64 * max(1, round(hidden / 48)),
        num_attention_heads=heads,
        num_key_value_heads=heads // 3 if heads % 3 == 0 else heads,
        max_position_embeddings=theirs.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=False,
        dtype="float32",
        initializer_range=_DEVIATION,
    )
    told = {
        "target": name,
        "sketch": Sketch.from_model(target).encode(),
        "embedding": embedding.embedding_dim,
        "states": head.in_features,
        "layers": middle_layers(target, config.reads_at),
        "depth": theirs.num_hidden_layers,
    }
    setattr(shape, READS, told)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model: Any = build(shape, kept.tolist())
    scale = (2 * layers) ** -0.5  # what adds to the residual stream begins small
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(scale)
            layer.mlp.down_proj.weight.mul_(scale)
    made: PreTrainedModel = model
    return made


def middle_layers(target: PreTrainedModel, reads_at: float) -> tuple[int, ...]:
    """Return the layers whose states a draft reads behind the last ones, `reads_at` as in
    `DraftTraining`.
    """
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    return (min(depth - 1, round(reads_at * depth)),) if reads_at else ()


def _padded(stretches: Sequence[TextChunk], width: int) -> tuple[Tensor, Tensor]:
    """Return token ids [b, width] and states [b, width, 1 + layers, hidden], of the dtype they
    were read in.
    """
    assert stretches[0].states is not None, "read before"
    ids = torch.zeros(len(stretches), width, dtype=torch.long)
    states = stretches[0].states.new_zeros(len(stretches), width, *stretches[0].states.shape[1:])
    for row, one in enumerate(stretches):
        assert one.states is not None, "read before"
        ids[row, : len(one)] = torch.from_numpy(one.token_ids)
        states[row, : len(one)] = one.states
    return ids, states


def _pairs(learnt: Sequence[TextChunk]) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, the states they were chosen by, one layer's behind the other's, and the
    last ones after them.
    """
    tokens, before, after = [], [], []
    count = 0
    for one in learnt:
        assert one.states is not None, "read before"
        tokens.append(torch.from_numpy(one.token_ids[1:]).long())
        before.append(one.states[:-1].flatten(1).float())
        after.append(one.states[1:, 0].float())
        count += len(tokens[-1])
        if count >= _PAIRS:
            break
    return torch.cat(tokens), torch.cat(before), torch.cat(after)


def _least_squares(inputs: Tensor, wanted: Tensor) -> Tensor:
    square = inputs.T @ inputs
    square.diagonal().add_(_RIDGE)
    solution: Tensor = torch.linalg.solve(square, inputs.T @ wanted)
    return solution.T
