"""The ends of a draft that reads the target's hidden states: what goes in and what comes out of its
layers.

A token that the target has said goes in with the states it was chosen by, what the LM head read and
what went into some layers in the middle (EAGLE-3, Li et al. 2025, section 3.1), so that the draft
begins where the target has come to; one that is only drafted goes in alone (EAGLE gives it the
draft's own state instead, which has to be made first: here any tree of guesses, looked-up phrases
too, is one forward). Tokens are the target's own embeddings and come out through its own LM head,
of which the draft has a reduced vocabulary (`kept_vocabulary`); both stay where they are, in the
target.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.backend.plain_tensors import is_plain
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.model.forward_state import StateReader, TargetStates
from paceline.model.identity import Sketch
from paceline.model.reduced_vocabulary import spread
from paceline.model.settings import MIN_SKETCH_COSINE

# of weights that are what they are: numbers of 8 bits have scales besides
_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
# in the configuration of such a draft: sketch and sizes of its target, layers that it reads
READS = "reads_states_of"


class TargetStateEmbedding(StateReader):
    """Makes what goes into the first layer, [rows, columns, hidden], of token ids and of the states
    that are being read.

    Args:
        embedding, states: sizes of the target's embeddings and states. hidden: of the draft.
        layers: of the target, whose states are read behind the last ones.
    Attributes:
        layers: as above, as the target that it is attached to counts them.
        token_scale, state_scale: [1], [states of all layers]: bring the target's numbers to a size
            of about 1.
        table: [vocab, embedding], the target's embedding; None until it is attached.
    """

    token_scale: Tensor
    state_scale: Tensor

    def __init__(
        self, embedding: int, states: int, hidden: int, layers: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.layers, self._states = layers, states
        states *= 1 + len(layers)
        self.read = nn.Linear(embedding + states, hidden, bias=False)
        self.unread = nn.Linear(embedding, hidden)
        self.register_buffer("token_scale", torch.ones(1))
        self.register_buffer("state_scale", torch.ones(states))
        self.table: Tensor | None = None

    def forward(self, token_ids: Tensor, target_states: TargetStates | None = None) -> Tensor:
        """Return the inputs of the first layer.

        Args:
            token_ids: [rows, columns].
            target_states: Target states of some of the tokens; default those of the view's forward.
        """
        assert self.table is not None, "attached when an engine is built"
        dtype = self.read.weight.dtype
        tokens = self.table[token_ids].to(dtype) * self.token_scale
        made: Tensor = self.unread(tokens)
        target_states = target_states or self.state.target_states
        if target_states is None or not target_states.at.shape[1]:
            return made
        rows, columns = target_states.at
        # those of an enlarged target have zeros behind
        states = target_states.states[..., : self._states].flatten(1)
        known = torch.cat((tokens[rows, columns], states.to(dtype) * self.state_scale), dim=-1)
        return made.index_put((rows, columns), self.read(known))


class TargetStateHead(StateReader):
    """The target's LM head, of the tokens that the draft keeps; the probability of all others is 0.

    Args:
        hidden: size of the draft's states. states: of the target's. vocab_size: of both.
        token_ids: those that are kept, ascending.
    Attributes:
        kept: [kept, states], rows of the target's head; None until it is attached. added: [kept],
            of its bias.
    """

    token_ids: Tensor

    def __init__(self, hidden: int, states: int, vocab_size: int, token_ids: Tensor) -> None:
        super().__init__()
        self.out = nn.Identity() if hidden == states else nn.Linear(hidden, states, bias=False)
        self.register_buffer("token_ids", token_ids, persistent=False)
        self.vocab_size = vocab_size
        self.kept: Tensor | None = None
        self.added: Tensor | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab] of hidden states [..., hidden]."""
        logits = self._said(self.out(hidden))
        if self.state.reduced_logits:
            return logits
        return spread(logits, self.token_ids, self.vocab_size)

    def guess(self, states: Tensor) -> Tensor:
        """Return the likeliest token of each of what `out` makes, [...]."""
        return self.token_ids[self._said(states).argmax(-1)]

    def _said(self, states: Tensor) -> Tensor:
        assert self.kept is not None, "attached when an engine is built"
        return self.state.linear(states, self.kept, self.added)


def uses_target_states(model: PreTrainedModel) -> bool:
    """Whether a draft model reads the target's states."""
    return isinstance(model.get_input_embeddings(), TargetStateEmbedding)


def layers_read(draft: PreTrainedModel) -> tuple[int, ...]:
    """Return the layers whose states a draft reads behind the last ones, as the target that it
    is attached to counts them.
    """
    embedding: Any = draft.get_input_embeddings()
    layers: tuple[int, ...] = embedding.layers
    return layers


def states_shape(draft: PreTrainedModel) -> tuple[int, int]:
    """Return the shape of the states that a draft reads at a place: how many, and their size."""
    return 1 + len(layers_read(draft)), getattr(draft.config, READS)["states"]


def attach(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """Give a draft that reads states the embedding and the LM head of its target; a draft that
    reads none needs nothing.

    Raises:
        ConfigError: it was trained for another target.
        UnsupportedModelError: a target whose embedding and head cannot be read.
    """
    embedding: Any = draft.get_input_embeddings()
    if not isinstance(embedding, TargetStateEmbedding):
        return
    head: Any = draft.get_output_embeddings()
    told = getattr(draft.config, READS)
    sketch = Sketch.decode(told["sketch"])
    if not sketch.resembles(target):
        raise ConfigError(
            f"draft: got one that reads the hidden states of {told['target']!r}, for a target whose"
            f" embedding has a cosine of {sketch.closeness(target):.2f} to that model's; expected"
            f" that target, or a copy that is at {MIN_SKETCH_COSINE} or above. Train one for"
            " this model (`paceline draft train`)."
        )
    theirs, out = embedding_and_lm_head(target)
    where = embedding.read.weight
    # A target that was enlarged (`paceline.bench.cost_scale`) has zeros behind, and layers between
    # that do nothing.
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    embedding.layers = tuple(layer * depth // told["depth"] for layer in told.get("layers", ()))
    embedding.table = theirs.weight.detach()[:, : told["embedding"]].to(where.device)
    rows = head.token_ids.to(out.weight.device)
    kept = out.weight.detach()[rows][:, : told["states"]].to(where.device, where.dtype).contiguous()
    if head.kept is None or not torch.equal(head.kept, kept):  # what was made of them stays
        head.kept = kept
    head.added = None if out.bias is None else out.bias.detach()[rows].to(where.device, where.dtype)


def embedding_and_lm_head(target: PreTrainedModel) -> tuple[nn.Embedding, nn.Linear]:
    """Return the modules through which tokens go in and come out of a target.

    Raises:
        UnsupportedModelError: they are no plain weights.
    """
    embedding, head = target.get_input_embeddings(), target.get_output_embeddings()
    plain = isinstance(embedding, nn.Embedding) and isinstance(head, nn.Linear)
    if not plain or not all(
        is_plain(end.weight) and end.weight.dtype in _DTYPES for end in (embedding, head)
    ):
        raise UnsupportedModelError(
            f"{type(target).__name__}: got an embedding or an LM head that is no plain weight;"
            " expected both to be, for a draft that reads its hidden states. Use a draft that"
            " reads none."
        )
    return embedding, head
