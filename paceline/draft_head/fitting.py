"""Foresight without training: a linear map by least squares, over some thousand tokens that the
model writes at random, once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.core.request import Request, SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.draft_head.weights import Weights, ends, shape_of
from paceline.errors import UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import model_identity
from paceline.util import result_cache
from paceline.util.stopwatch import clock_of

_KIND = "draft-head-v2"  # another number when what is found or written changes
_TEXTS, _LENGTH = 64, 64  # that are written together, and their tokens
_MOST_BYTES = 1 << 28  # of the cache that they take, but for eight of them
# of state and next state: for each number the map is given, and in all
_PAIRS_EACH, _MOST_PAIRS = (16, 16384)
_MOST_SECONDS = 16.0  # no forward is begun after so long
_FEWEST_PAIRS = 512
_RIDGE = 200.0  # pairs whose inputs are of average size, and whose next state is 0
_COMMONEST = 4096  # tokens: vocabularies are in the order of their merges
_WORTH_KEEPING = 1 << 36  # multiply-adds; fewer are made again sooner than read


def fitted(model: CachedLM) -> Weights | None:
    """Return the weights for a model; fitted where they were not before for its own, in little more
    than `_MOST_SECONDS`.

    Returns:
        None where it is too slow for what a map needs, or makes its logits without the head it
        names.
    """
    pairs = _pairs(model)
    parameters = sum(parameter.numel() for parameter in model.model.parameters())
    if pairs * parameters < _WORTH_KEEPING:
        weights = _fit(model, pairs)
    else:
        name = f"what the states of {model.model.__class__.__name__} tell of the next token"
        # an enlarged model has the identity of the original
        facts = f"{model_identity(model.model)[0]} {shape_of(model)}"
        place = result_cache.ResultKey(_KIND, facts, name, "weights.safetensors")
        weights = result_cache.load_or_compute_bytes(
            place,
            lambda: _fit(model, pairs),
            lambda made: made.to_bytes({}),
            lambda kept: _read(kept, model),
        )
    return weights if len(weights.kept) else None


def _pairs(model: CachedLM) -> int:
    return max(_FEWEST_PAIRS, min(_MOST_PAIRS, _PAIRS_EACH * (shape_of(model)[0] + 1)))


def _inputs(states: Tensor, embeddings: Tensor) -> Tensor:
    one = torch.ones(len(states), 1, device=states.device)
    return torch.cat((states.float(), embeddings.float(), one), dim=-1)


@torch.inference_mode()
def _fit(model: CachedLM, pairs: int) -> Weights:
    """Return the weights, none where there is too little to fit them to."""
    embedding, head = ends(model)
    try:
        states, token_ids, following = _write(model, pairs)
    except UnsupportedModelError:
        states = torch.empty(0, 0)
    if len(states) < _FEWEST_PAIRS:
        return _weights(torch.empty(shape_of(model)[0] + 1, shape_of(model)[1]), 0)
    inputs = _inputs(states, embedding.weight[token_ids])
    scale = inputs.square().mean(0).sqrt().clamp(min=1e-6)
    hidden = states.shape[-1]
    scale[:hidden], scale[hidden:-1] = (
        scale[:hidden].square().mean().sqrt(),
        scale[hidden:-1].square().mean().sqrt(),
    )
    inputs /= scale
    return _weights(
        (_solve(inputs, following) / scale[:, None]).cpu(), min(_COMMONEST, head.weight.shape[0])
    )


def _weights(solution: Tensor, kept: int) -> Weights:
    """Return the weights of a map [inputs and one, hidden]."""
    hidden = solution.shape[1]
    return Weights(
        solution[:-1].T.contiguous(), solution[-1], torch.empty(hidden, 0), torch.arange(kept)
    )


def _solve(inputs: Tensor, following: Tensor) -> Tensor:
    """Return the weights of least squares with the ridge, by the smaller system: an equation for
    each input, or pair.
    """
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
    """Have the model write texts at temperature 1; states [n, hidden], the tokens drawn of them
    [n], the states after these.
    """
    apart, first = model.apart(), _first_token(model)
    random = torch.Generator(model.device).manual_seed(0)
    length = min(_LENGTH, model.context_length - 1)
    together = max(8, min(_TEXTS, _MOST_BYTES // max(1, model.position_bytes * (length + 1))))
    found: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    clock = clock_of(model.device)
    begin = clock()
    while len(found[0]) * together < pairs and clock() - begin <= _MOST_SECONDS:
        texts = [
            Request([first], SamplingParams(max_new_tokens=length + 1, ignore_eos=True))
            for _ in range(together)
        ]
        for text in texts:
            apart.open(text)
        states, token_ids = _advance(apart, texts, random)
        for _ in range(length - 1):
            if len(found[0]) * together >= pairs or clock() - begin > _MOST_SECONDS:
                break
            before = states, token_ids
            states, token_ids = _advance(apart, texts, random)
            for kept, one in zip(found, (*before, states), strict=True):
                kept.append(one)
        for text in texts:
            apart.close(text)
    hidden = ends(model)[1].in_features
    return tuple(torch.cat(kept) if kept else torch.empty(0, hidden) for kept in found)  # type: ignore[return-value]


def _advance(
    model: CachedLM, texts: list[Request], random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Write one more token of each; the states they were drawn of, and the tokens."""
    logits = model.forward_with_states(texts, [EMPTY_TREE] * len(texts))
    model.commit([()] * len(texts))
    assert logits.states is not None, "asked for"
    sums = logits.flat.float().softmax(-1).cumsum(-1)
    draws = torch.rand(len(texts), 1, generator=random, device=sums.device) * sums[:, -1:]
    token_ids = torch.searchsorted(sums, draws).clamp(max=sums.shape[-1] - 1).flatten()
    for text, token in zip(texts, token_ids.tolist(), strict=True):
        text.append([token])
    return logits.states[:, 0].float(), token_ids


def _first_token(model: CachedLM) -> int:
    """Return the token that begins a text, else one that ends it."""
    config = model.model.config.get_text_config(decoder=True)
    for named in (config.bos_token_id, config.eos_token_id):
        token = named[0] if isinstance(named, list) and named else named
        if isinstance(token, int) and 0 <= token < model.vocab_size:
            return token
    return 0


def _read(content: bytes, model: CachedLM) -> Weights:
    """Return what was kept.

    Raises:
        ValueError: it is damaged.
    """
    weights = Weights.from_bytes(content)
    inputs, hidden = shape_of(model)
    if tuple(weights.first.shape) != (hidden, inputs):
        raise ValueError(f"weights of another shape: {tuple(weights.first.shape)}")
    return weights
