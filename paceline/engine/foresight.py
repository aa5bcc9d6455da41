"""What the target may say after the token it has just chosen, read off its hidden state: a guess before its next forward.

The state of which a token was made tells something of the next one, too (Pal et al. 2023, "Future Lens"); with the token that was
chosen it tells more. EAGLE (Li et al. 2024, section 3) trains a layer that makes the next state of both. Here it is a linear map:

    next state ~ [state, embedding of the token, 1] @ weights       the next token: by the LM head, among the commonest ones

Such a map needs no training: least squares over some thousand tokens that the model writes at random, once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as ListLike
from dataclasses import replace

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from paceline.common import cache
from paceline.engine.best_tokens import likeliest
from paceline.engine.drafter import Outcome, TopTokens
from paceline.engine.identity import model_identity
from paceline.engine.model import CachedLM
from paceline.engine.node_logits import NodeLogits
from paceline.engine.sequence import SamplingParams, Sequence
from paceline.engine.tree import EMPTY_TREE
from paceline.errors import UnsupportedModelError

_KIND = "foresight-v1"  # another number when what is found or written changes
_TEXTS, _LENGTH = 64, 64  # that are written together, and their tokens
_MOST_BYTES = 1 << 28  # of the cache that they take, but for eight of them
_PAIRS_EACH, _MOST_PAIRS = 16, 16384  # of state and next state: for each number the map is given, and in all
_MOST_SECONDS = 16.0  # no forward is begun after so long
_FEWEST_PAIRS = 512
_RIDGE = 200.0  # pairs whose inputs are of average size, and whose next state is 0
_COMMONEST = 4096  # tokens: vocabularies are in the order of their merges
_WORTH_KEEPING = 1 << 36  # multiply-adds; fewer are made again sooner than read


class Foresight:
    """Guesses the next token of rows of hidden states.

    Args:
        model: whose states they are. weights: [inputs, hidden], of a state, the embedding of a token, and 1.
    """

    def __init__(self, model: CachedLM, weights: Tensor) -> None:
        embedding, head = _ends(model)
        common = min(_COMMONEST, head.weight.shape[0])
        self._embedding, self._products = embedding.weight, model.products
        self._head, self._bias = head.weight[:common], None if head.bias is None else head.bias[:common]
        self._weights = weights.to(self._head.device, torch.float32)

    @torch.inference_mode()
    def foresee(self, states: Tensor, token_ids: ListLike[int], count: int) -> TopTokens:
        """Return the likeliest tokens two places behind those that states are of, when one of `token_ids` is between.

        Args:
            states: [n, hidden], what the LM head was fed. token_ids: [n], chosen by what it made of them.
        """
        inputs = _inputs(states, self._embedding[torch.tensor(token_ids, device=states.device)])
        guessed = (inputs @ self._weights).to(self._head.dtype)
        return TopTokens(*likeliest(self._products.linear(guessed, self._head, self._bias), count))

    def add_to(self, outcomes: ListLike[Outcome], logits: NodeLogits, count: int) -> list[Outcome]:
        """Add `foreseen` to the outcomes of a step.

        Args:
            logits: with their states, the rows in the order of `outcomes`.
        """
        if not outcomes:
            return []
        assert logits.states is not None, "asked for"
        ends = [
            start + (1 + outcome.accepted[-1] if outcome.accepted else 0)
            for start, outcome in zip(logits.starts, outcomes, strict=True)
        ]
        top = self.foresee(logits.states[ends], [outcome.new_token_ids[-1] for outcome in outcomes], count)
        return [
            replace(outcome, foreseen=TopTokens(top.token_ids[row : row + 1], top.probs[row : row + 1]))
            for row, outcome in enumerate(outcomes)
        ]


def find_foresight(model: CachedLM) -> Foresight | None:
    """Return that of a model; fitted where it was not before for these weights, in little more than `_MOST_SECONDS`.

    Returns:
        None where the model's states or embeddings are not to be had, or it is too slow for what a map needs.
    """
    if not _has_ends(model):
        return None
    pairs = _pairs(model)
    parameters = sum(parameter.numel() for parameter in model.model.parameters())
    if pairs * parameters < _WORTH_KEEPING:
        weights = _fit(model, pairs)
    else:
        name = f"what the states of {model.model.__class__.__name__} tell of the next token"
        facts = f"{model_identity(model.model)[0]} {_shape(model)}"  # an enlarged model has the identity of the original
        place = cache.Place(_KIND, facts, name, "weights.safetensors")
        weights = cache.remember_bytes(place, lambda: _fit(model, pairs), _to_bytes, lambda kept: _read(kept, model))
    return Foresight(model, weights) if len(weights) else None


def _ends(model: CachedLM) -> tuple[nn.Embedding, nn.Linear]:
    embedding, head = model.model.get_input_embeddings(), model.model.get_output_embeddings()
    assert isinstance(embedding, nn.Embedding), "_has_ends"
    assert isinstance(head, nn.Linear), "_has_ends"
    return embedding, head


def _has_ends(model: CachedLM) -> bool:
    """Whether tokens go in and come out through weights that can be read."""
    ends = model.model.get_input_embeddings(), model.model.get_output_embeddings()
    kinds = isinstance(ends[0], nn.Embedding) and isinstance(ends[1], nn.Linear)
    return kinds and all(end.weight.is_floating_point() and end.weight.device == model.device for end in ends)


def _pairs(model: CachedLM) -> int:
    return max(_FEWEST_PAIRS, min(_MOST_PAIRS, _PAIRS_EACH * _shape(model)[0]))


def _shape(model: CachedLM) -> tuple[int, int]:
    """Return that of the weights."""
    embedding, head = _ends(model)
    return head.in_features + embedding.embedding_dim + 1, head.in_features


def _inputs(states: Tensor, embeddings: Tensor) -> Tensor:
    one = torch.ones(len(states), 1, device=states.device)
    return torch.cat((states.float(), embeddings.float(), one), dim=-1)


@torch.inference_mode()
def _fit(model: CachedLM, pairs: int) -> Tensor:
    """Return the weights; none where the model is too slow, or makes its logits without the head it names."""
    embedding, _ = _ends(model)
    try:
        states, token_ids, following = _write(model, pairs)
    except UnsupportedModelError:
        return torch.empty(0, 0)
    if len(states) < _FEWEST_PAIRS:
        return torch.empty(0, 0)
    inputs = _inputs(states, embedding.weight[token_ids])
    scale = inputs.square().mean(0).sqrt().clamp(min=1e-6)
    hidden = states.shape[-1]
    scale[:hidden], scale[hidden:-1] = scale[:hidden].square().mean().sqrt(), scale[hidden:-1].square().mean().sqrt()
    inputs /= scale
    weights = _solve(inputs, following) / scale[:, None]
    return weights.cpu()


def _solve(inputs: Tensor, following: Tensor) -> Tensor:
    """Return the weights of least squares with the ridge, by the smaller system: an equation for each input, or pair."""
    weights: Tensor
    if len(inputs) >= inputs.shape[1]:
        weights = torch.linalg.solve(_with_ridge(inputs.T @ inputs), inputs.T @ following)
    else:
        weights = inputs.T @ torch.linalg.solve(_with_ridge(inputs @ inputs.T), following)
    return weights


def _with_ridge(square: Tensor) -> Tensor:
    square.diagonal().add_(_RIDGE)
    return square


def _write(model: CachedLM, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Have the model write texts at temperature 1; states [n, hidden], the tokens drawn of them [n], the states after these."""
    apart, first = model.apart(), _first_token(model)
    random = torch.Generator(model.device).manual_seed(0)
    length = min(_LENGTH, model.context_length - 1)
    together = max(8, min(_TEXTS, _MOST_BYTES // max(1, model.position_bytes * (length + 1))))
    found: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    begin = time.perf_counter()
    while len(found[0]) * together < pairs and time.perf_counter() - begin <= _MOST_SECONDS:
        texts = [Sequence([first], SamplingParams(max_new_tokens=length + 1, ignore_eos=True)) for _ in range(together)]
        for text in texts:
            apart.open(text)
        states, token_ids = _advance(apart, texts, random)
        for _ in range(length - 1):
            if len(found[0]) * together >= pairs or time.perf_counter() - begin > _MOST_SECONDS:
                break
            before = states, token_ids
            states, token_ids = _advance(apart, texts, random)
            for kept, one in zip(found, (*before, states), strict=True):
                kept.append(one)
        for text in texts:
            apart.close(text)
    hidden = _ends(model)[1].in_features
    return tuple(torch.cat(kept) if kept else torch.empty(0, hidden) for kept in found)  # type: ignore[return-value]


def _advance(model: CachedLM, texts: list[Sequence], random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Write one more token of each; the states they were drawn of, and the tokens."""
    logits = model.forward_with_states(texts, [EMPTY_TREE] * len(texts))
    model.commit([()] * len(texts))
    assert logits.states is not None, "asked for"
    sums = logits.flat.float().softmax(-1).cumsum(-1)
    draws = torch.rand(len(texts), 1, generator=random, device=sums.device) * sums[:, -1:]
    token_ids = torch.searchsorted(sums, draws).clamp(max=sums.shape[-1] - 1).flatten()
    for text, token in zip(texts, token_ids.tolist(), strict=True):
        text.append([token])
    return logits.states.float(), token_ids


def _first_token(model: CachedLM) -> int:
    """Return the token that begins a text, else one that ends it."""
    config = model.model.config.get_text_config(decoder=True)
    for named in (config.bos_token_id, config.eos_token_id):
        token = named[0] if isinstance(named, list) and named else named
        if isinstance(token, int) and 0 <= token < model.vocab_size:
            return token
    return 0


def _to_bytes(weights: Tensor) -> bytes:
    content: bytes = safetensors.torch.save({"weights": weights.to(torch.float16).contiguous()})
    return content


def _read(content: bytes, model: CachedLM) -> Tensor:
    """Return what was kept.

    Raises:
        ValueError: it is damaged.
    """
    try:
        weights: Tensor = safetensors.torch.load(content)["weights"]
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    if tuple(weights.shape) not in (_shape(model), (0, 0)) or not weights.isfinite().all():
        raise ValueError(f"weights of another shape: {tuple(weights.shape)}")
    return weights
