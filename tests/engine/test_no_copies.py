"""Test that a step copies no cache: it writes in place, and attention reads views."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import load_model

TARGET = Path(__file__).parents[1] / "data" / "tiny_target"


def test_cache_is_written_in_place_and_read_as_views() -> None:
    lm = CachedLM(load_model(TARGET))
    lm.reserve(3, 64)
    requests = [Request(list(range(3, 3 + length)), SamplingParams()) for length in (5, 9, 7)]
    for request in requests:
        lm.open(request)
        lm.feed([request])
    layers = lm._cache.layers
    addresses = [store.data_ptr() for layer in layers for store in (layer.keys, layer.values)]
    for accepted in ([[0, 1], [], [2]], [[], [2], [0]]):  # a chain, nothing, a branch
        for request in requests:
            request.token_ids.append(11)
        lm.forward(requests, [DraftTree([4, 5, 6], [-1, 0, -1])] * 3)
        lm.commit(accepted)
        for request, path in zip(requests, accepted, strict=True):
            request.token_ids.extend([4, 5, 6][node] for node in path)
    assert [
        store.data_ptr() for layer in layers for store in (layer.keys, layer.values)
    ] == addresses
    heads, dim = layers[0].keys.shape[1], layers[0].keys.shape[3]
    columns = lm._cache.window.positions.shape[1]
    with torch.inference_mode():
        seen = layers[0].update(*(torch.zeros(3, heads, columns, dim) for _ in range(2)))
    for view, store in zip(seen, (layers[0].keys, layers[0].values), strict=True):
        assert view.untyped_storage().data_ptr() == store.untyped_storage().data_ptr()
