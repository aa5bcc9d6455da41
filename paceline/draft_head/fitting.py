"""Fit a linear draft head by ridge regression, instead of training one.

The target first generates a few thousand tokens as training data. The linear map predicts the
target's next hidden state from the current hidden state and the embedding of the token sampled from
this state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.draft_head.settings import FitSettings
from paceline.draft_head.weights import Weights, embedding_and_head, shape_of
from paceline.errors import UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import model_identity
from paceline.util import result_cache
from paceline.util.stopwatch import clock_of

_KIND = "draft-head-v2"  # increment when the fitted or saved data change
_SETTINGS = FitSettings()
T = TypeVar("T")
# A generator that does one portion of its work per `next` call, and returns the result.
Portions = Generator[None, None, T]


class _Pairs(NamedTuple):
    """Pairs of consecutive hidden states, from which the regression learns.

    Attributes:
        states: Hidden states, [n, hidden].
        token_ids: Token sampled from each of these states, [n].
        following: Hidden state after each of these tokens, [n, hidden].
    """

    states: Tensor
    token_ids: Tensor
    following: Tensor


def fitted_weights(model: CachedLM) -> Weights | None:
    """Fit the weights of a draft head to a model, or load them from the cache.

    The fit may exceed `FitSettings.max_seconds` slightly.

    Returns:
        The weights, or None if the model is too slow to fit a draft head or computes its logits
        without its LM head module.
    """
    return _cached(model, lambda: finished(_fit(model, _num_pairs(model))))


def fit_in_portions(model: CachedLM) -> Portions[Weights | None]:
    """Run `fitted_weights` in portions of one forward pass each.

    The engine can run its own steps between two portions. If the cache contains the weights, the
    generator returns without yielding.
    """
    weights = result_cache.load_bytes(_key(model), lambda content: _read(content, model))
    if weights is None:
        weights = yield from _fit(model, _num_pairs(model))
        return _cached(model, lambda: weights)
    return weights if len(weights.token_ids) else None


def finished(portions: Portions[T]) -> T:
    """Run all remaining portions of a generator, and return its result."""
    while True:
        try:
            next(portions)
        except StopIteration as end:
            result: T = end.value
            return result


def _cached(model: CachedLM, compute: Callable[[], Weights]) -> Weights | None:
    """Load the weights from the cache, or compute and store them.

    Return None if the model was too slow to generate enough text. The cache stores this outcome as
    well.
    """
    weights = result_cache.load_or_compute_bytes(
        _key(model),
        compute,
        lambda weights: weights.to_bytes({}),
        lambda content: _read(content, model),
    )
    return weights if len(weights.token_ids) else None


def _key(model: CachedLM) -> result_cache.ResultKey:
    # An enlarged model has the same identity as the original, so the key includes its shape.
    facts = f"{model_identity(model.model)[0]} {shape_of(model)}"
    name = f"draft head of {model.model.__class__.__name__}"
    return result_cache.ResultKey(_KIND, facts, name, "weights.safetensors")


def _num_pairs(model: CachedLM) -> int:
    wanted = _SETTINGS.pairs_per_input * (shape_of(model)[0] + 1)
    return max(_SETTINGS.min_pairs, min(_SETTINGS.max_pairs, wanted))


def _inputs(states: Tensor, embeddings: Tensor) -> Tensor:
    constant = torch.ones(len(states), 1, device=states.device)
    return torch.cat((states.float(), embeddings.float(), constant), dim=-1)


@torch.inference_mode()
def _fit(model: CachedLM, num_pairs: int) -> Portions[Weights]:
    """Fit the weights of a draft head to texts that the model generates.

    If the model generates too little text, `Weights.token_ids` is empty.
    """
    embedding, head = embedding_and_head(model)
    try:
        pairs = yield from _generate(model, num_pairs)
    except UnsupportedModelError:
        pairs = _Pairs(torch.empty(0, 0), torch.empty(0), torch.empty(0, 0))
    if len(pairs.states) < _SETTINGS.min_pairs:
        return _weights(torch.empty(shape_of(model)[0] + 1, shape_of(model)[1]), 0)
    inputs = _inputs(pairs.states, embedding.weight[pairs.token_ids])
    scale = inputs.square().mean(0).sqrt().clamp(min=1e-6)
    hidden = pairs.states.shape[-1]
    scale[:hidden], scale[hidden:-1] = (
        scale[:hidden].square().mean().sqrt(),
        scale[hidden:-1].square().mean().sqrt(),
    )
    inputs /= scale
    solution = (_solve(inputs, pairs.following) / scale[:, None]).cpu()
    return _weights(solution, min(_SETTINGS.num_token_ids, head.weight.shape[0]))


def _weights(solution: Tensor, num_token_ids: int) -> Weights:
    """Convert a fitted linear map to the weights of a draft head.

    Args:
        solution: Transposed matrix of the map, [inputs + 1, hidden]. The last row is the bias.
        num_token_ids: Size of the reduced draft vocabulary, which consists of the lowest ids.
    """
    hidden = solution.shape[1]
    return Weights(
        solution[:-1].T.contiguous(),
        solution[-1],
        torch.empty(hidden, 0),
        torch.arange(num_token_ids),
    )


def _solve(inputs: Tensor, following: Tensor) -> Tensor:
    """Solve the ridge regression with the smaller of two equivalent linear systems.

    With X = `inputs`, Y = `following`, the ridge penalty r and identity matrices I, the weights are

        (X^T X + r I)^-1 X^T Y  ==  X^T (X X^T + r I)^-1 Y

    The left system has one equation per input, and the right one has one equation per pair.

    Args:
        inputs: Inputs of the map, [n, inputs].
        following: Hidden states to predict, [n, hidden].
    Returns:
        Weights of the map, [inputs, hidden].
    """
    weights: Tensor
    if len(inputs) >= inputs.shape[1]:
        weights = torch.linalg.solve(_with_ridge(inputs.T @ inputs), inputs.T @ following)
    else:
        weights = inputs.T @ torch.linalg.solve(_with_ridge(inputs @ inputs.T), following)
    return weights


def _with_ridge(square: Tensor) -> Tensor:
    square.diagonal().add_(_SETTINGS.ridge)
    return square


def _generate(model: CachedLM, num_pairs: int) -> Portions[_Pairs]:
    """Generate texts with the model at temperature 1, and collect training pairs.

    Yield after every forward pass. Stop after `num_pairs` pairs or `FitSettings.max_seconds`.
    """
    target, first = model.apart(), _first_token(model)
    random = torch.Generator(model.device).manual_seed(0)
    length = min(_SETTINGS.text_tokens, model.context_length - 1)
    affordable = _SETTINGS.max_cache_bytes // max(1, model.position_bytes * (length + 1))
    num_texts = max(8, min(_SETTINGS.num_texts, affordable))
    columns: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    clock, seconds = clock_of(model.device), 0.0
    before: tuple[Tensor, Tensor] | None = None
    texts: list[Request] = []
    while len(columns[0]) * num_texts < num_pairs and seconds <= _SETTINGS.max_seconds:
        start = clock()
        if before is None:
            texts = _opened_texts(target, first, num_texts, length)
        states, token_ids = _advance(target, texts, random)
        if before is not None:
            for column, values in zip(columns, (*before, states), strict=True):
                column.append(values)
        before = states, token_ids
        if len(texts[0].token_ids) > length:  # the texts are complete; start new ones
            before = None
            for text in texts:
                target.close(text)
        seconds += clock() - start
        yield
    hidden = embedding_and_head(model)[1].in_features
    return _Pairs(*(torch.cat(column) if column else torch.empty(0, hidden) for column in columns))


def _opened_texts(target: CachedLM, first: int, count: int, length: int) -> list[Request]:
    params = SamplingParams(max_new_tokens=length + 1, ignore_eos=True)
    texts = [Request([first], params) for _ in range(count)]
    for text in texts:
        target.open(text)
    return texts


def _advance(
    model: CachedLM, texts: list[Request], random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sample the next token of each text; return the hidden states and the tokens."""
    logits = model.forward_with_states(texts, [EMPTY_TREE] * len(texts))
    model.commit([()] * len(texts))
    assert logits.states is not None, "the forward pass returns them"
    sums = logits.flat.float().softmax(-1).cumsum(-1)
    draws = torch.rand(len(texts), 1, generator=random, device=sums.device) * sums[:, -1:]
    token_ids = torch.searchsorted(sums, draws).clamp(max=sums.shape[-1] - 1).flatten()
    for text, token in zip(texts, token_ids.tolist(), strict=True):
        text.append([token])
    return logits.states[:, 0].float(), token_ids


def _first_token(model: CachedLM) -> int:
    """Return the model's beginning-of-sequence token, to start the generated texts.

    If the model has none, return an end-of-sequence token.
    """
    config = model.model.config.get_text_config(decoder=True)
    for named in (config.bos_token_id, config.eos_token_id):
        token = named[0] if isinstance(named, list) and named else named
        if isinstance(token, int) and 0 <= token < model.vocab_size:
            return token
    return 0


def _read(content: bytes, model: CachedLM) -> Weights:
    """Decode cached weights, and check that their shape matches the model.

    Raises:
        ValueError: The content is damaged, or the shape is wrong.
    """
    weights = Weights.from_bytes(content)
    inputs, hidden = shape_of(model)
    if tuple(weights.first.shape) != (hidden, inputs):
        raise ValueError(f"the weights have a different shape: {tuple(weights.first.shape)}")
    return weights
