"""Define the embedding and the LM head of a draft model that reads target states.

For each token that the target has chosen, the draft model also reads the target states from which
that token was chosen. These are the input to the LM head and the inputs to some middle layers
(EAGLE-3, Li et al. 2025, section 3.1). Such states do not exist for drafted tokens. EAGLE
substitutes the draft model's own state, which requires an earlier forward pass. Here, the draft
model reads no states for drafted tokens, so a tree of any shape takes only one forward pass.

The embedding and the LM head belong to the target. The draft model uses only the rows of the LM
head that a reduced vocabulary selects.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.backend.plain_tensors import has_numbers
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.model.forward_state import StateReader, TargetStates
from paceline.model.identity import Sketch
from paceline.model.reduced_vocabulary import spread
from paceline.model.settings import MIN_SKETCH_COSINE, WARN_SKETCH_COSINE

# Dtypes whose values need no scales, unlike 8-bit weights.
_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
# Entry in the draft model's configuration: the target's sketch and sizes, and the layers to read.
READS = "reads_states_of"


class TargetStateEmbedding(StateReader):
    """Computes the first layer's input from token ids and target states.

    Args:
        embedding: Size of the target's embedding vectors.
        states: Size of the target's hidden states.
        hidden: Hidden size of the draft model.
        layers: Indices of middle layers whose inputs the draft model also reads. The indices refer
            to the target used in training.
    Attributes:
        layers: Indices of these layers in the attached target.
        token_scale: Factor that scales the target's embeddings to a size of about 1, [1].
        state_scale: Factors that scale the target's states to a size of about 1, [states of all
            layers].
        table: The target's embedding, [vocab, embedding]; None until the target is attached.
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
        """Return the first layer's input, [rows, columns, hidden].

        Args:
            token_ids: Token ids, [rows, columns].
            target_states: Target states of some tokens, with the tokens' rows and columns. Default:
                the target states in the module's `ForwardState`.
        """
        assert self.table is not None, "attached when an engine is built"
        dtype = self.read.weight.dtype
        tokens = self.table[token_ids].to(dtype) * self.token_scale
        rows_in: Tensor = self.unread(tokens)
        target_states = target_states or self.state.target_states
        if target_states is None or not target_states.at.shape[1]:
            return rows_in
        rows, columns = target_states.at
        # If `paceline.bench.cost_scale` has enlarged the target, its states end in zeros.
        states = target_states.states[..., : self._states].flatten(1)
        known = torch.cat((tokens[rows, columns], states.to(dtype) * self.state_scale), dim=-1)
        return rows_in.index_put((rows, columns), self.read(known))


class TargetStateHead(StateReader):
    """The target's LM head over a reduced vocabulary; other tokens have probability 0.

    Args:
        hidden: Hidden size of the draft model.
        states: Size of the target's hidden states.
        vocab_size: Vocabulary size of both models.
        token_ids: Token ids of the reduced vocabulary, ascending.
    Attributes:
        kept: Rows of the target's head for `token_ids`, [kept, states]; None until the target is
            attached.
        added: Entries of the target's bias for `token_ids`, [kept]; None if the target has no bias.
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
        """Return logits [..., vocab] for hidden states [..., hidden]."""
        logits = self._reduced_logits(self.out(hidden))
        if self.state.reduced_logits:
            return logits
        return spread(logits, self.token_ids, self.vocab_size)

    def guess(self, states: Tensor) -> Tensor:
        """Return the most likely token ids, [...].

        Args:
            states: Inputs to the target's LM head, [..., states].
        """
        return self.token_ids[self._reduced_logits(states).argmax(-1)]

    def _reduced_logits(self, states: Tensor) -> Tensor:
        assert self.kept is not None, "attached when an engine is built"
        return self.state.linear(states, self.kept, self.added)


def uses_target_states(model: PreTrainedModel) -> bool:
    """Return True if a draft model reads target states."""
    return isinstance(model.get_input_embeddings(), TargetStateEmbedding)


def layers_read(draft: PreTrainedModel) -> tuple[int, ...]:
    """Return the indices of the target's middle layers that a draft model reads."""
    embedding: Any = draft.get_input_embeddings()
    layers: tuple[int, ...] = embedding.layers
    return layers


def states_shape(draft: PreTrainedModel) -> tuple[int, int]:
    """Return how many target states a draft model reads per token, and their size."""
    return 1 + len(layers_read(draft)), getattr(draft.config, READS)["states"]


def attach(draft: PreTrainedModel, target: PreTrainedModel) -> None:
    """Attach an EAGLE-style draft model to its target's embedding and LM head.

    Draft models of other kinds are not changed.

    Args:
        draft: Draft model to attach.
        target: Target of the draft model.
    Raises:
        ConfigError: The draft model was trained for a different target.
        UnsupportedModelError: The target's embedding or LM head cannot be read.
    """
    embedding: Any = draft.get_input_embeddings()
    if not isinstance(embedding, TargetStateEmbedding):
        return
    head: Any = draft.get_output_embeddings()
    trained_for = getattr(draft.config, READS)
    sketch = Sketch.decode(trained_for["sketch"])
    closeness = sketch.closeness(target)
    if closeness < MIN_SKETCH_COSINE:
        raise ConfigError(
            f"draft: got a draft model that reads the hidden states of {trained_for['target']!r};"
            " expected one that was trained for this target or a copy of it. The embeddings of the"
            f" two targets have a cosine similarity of {closeness:.2f}; at least"
            f" {MIN_SKETCH_COSINE} is required. Train a draft model for this target (`paceline"
            " draft train`)."
        )
    if closeness < WARN_SKETCH_COSINE:
        warnings.warn(
            f"draft: it reads the hidden states of {trained_for['target']!r}, but this target's"
            f" embedding has a cosine similarity of only {closeness:.2f} to that model's. Fewer"
            " draft tokens may be accepted; answers stay the same. Train a draft model for this"
            " target.",
            stacklevel=2,
        )
    target_embedding, target_head = embedding_and_lm_head(target)
    like = embedding.read.weight  # has the draft model's device and dtype
    # If `paceline.bench.cost_scale` has enlarged a target, its states end in zeros, and it contains
    # additional layers that change nothing.
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    layers = trained_for.get("layers", ())
    embedding.layers = tuple(layer * depth // trained_for["depth"] for layer in layers)
    embedding.table = target_embedding.weight.detach()[:, : trained_for["embedding"]].to(
        like.device
    )
    rows = head.token_ids.to(target_head.weight.device)
    head_rows = (
        target_head.weight.detach()[rows][:, : trained_for["states"]]
        .to(like.device, like.dtype)
        .contiguous()
    )
    if head.kept is None or not torch.equal(
        head.kept, head_rows
    ):  # replacing equal rows would discard the 8-bit weights that were computed from them
        head.kept = head_rows
    head.added = (
        None
        if target_head.bias is None
        else target_head.bias.detach()[rows].to(like.device, like.dtype)
    )


def embedding_and_lm_head(target: PreTrainedModel) -> tuple[nn.Embedding, nn.Linear]:
    """Return a target's embedding and LM head.

    Raises:
        UnsupportedModelError: A weight of these modules is neither a plain nor a packed tensor.
    """
    embedding, head = target.get_input_embeddings(), target.get_output_embeddings()
    plain = isinstance(embedding, nn.Embedding) and isinstance(head, nn.Linear)
    if not plain or not all(
        has_numbers(end.weight) and end.weight.dtype in _DTYPES for end in (embedding, head)
    ):
        raise UnsupportedModelError(
            f"{type(target).__name__}: got an embedding or an LM head that is not a plain weight;"
            " expected plain weights, because the draft model reads this target's hidden states."
            " Use a draft model that reads no hidden states."
        )
    return embedding, head
