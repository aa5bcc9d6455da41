"""Compare every column of random padded batches with its definition."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import SamplingParams
from paceline.attention.reach import Reach
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.model.padded_batch import PaddedBatch, lay_out

REACHES = [Reach(), Reach(window=4), Reach(chunk=8)]


def random_batch(seed: int) -> tuple[list[Request], list[DraftTree], PaddedBatch]:
    """Return requests in random states with random trees, and their layout."""
    chance = np.random.default_rng(seed)
    requests, trees = [], []
    for slot in range(int(chance.integers(1, 6))):
        cached, pending = int(chance.integers(0, 30)), int(chance.integers(1, 2 if seed % 2 else 9))
        nodes = int(chance.integers(0, 12)) if seed % 5 else 0
        request = Request(chance.integers(1, 99, cached + pending).tolist(), SamplingParams())
        request.cached, request.slot = cached, slot + 2
        requests.append(request)
        parents = [int(chance.integers(-1, node)) for node in range(nodes)]
        trees.append(DraftTree(chance.integers(1, 99, nodes).tolist(), parents))
    chunk = int(chance.integers(1, 12))
    for row, request in enumerate(requests):
        if request.pending > chunk:
            trees[row] = DraftTree([], [])
    return requests, trees, lay_out(requests, trees, chunk, int(chance.integers(1, 30)))


@pytest.mark.parametrize("seed", range(40))
def test_columns(seed: int) -> None:
    requests, trees, layout = random_batch(seed)
    columns = layout.token_ids.shape[1]
    root = columns - layout.width - 1
    assert layout.first_slot == 2
    for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        cached, pending, nodes = (int(each[row]) for each in layout[5:8])
        assert (cached, nodes) == (request.cached, len(tree))
        first, stop = root + 1 - pending, root + 1 + nodes
        taken = {(column - first) % columns + cached for column in range(columns)}
        assert set(layout.cache_positions[row].tolist()) == taken
        for column in range(columns):
            seen, padding = {root}, not first <= column < stop
            token, position = request.token_ids[-1], 0
            if first <= column <= root:
                seen = set(range(first, column + 1))
                position = cached + column - first
                token = request.token_ids[position]
            elif not padding:
                path = tree.path(column - root - 1)
                seen = {*range(first, root + 1), *(root + 1 + node for node in path)}
                token, position = tree.token_ids[path[-1]], cached + pending - 1 + len(path)
            assert layout.padding[row, column] == padding
            assert set(np.flatnonzero(layout.block[row, column]).tolist()) == seen
            assert layout.token_ids[row, column] == token
            assert layout.positions[row, column] == position
            assert layout.cache_positions[row, column] == cached + (column - first) % columns


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("seed", range(12))
def test_masks(seed: int, reach: Reach) -> None:
    _, _, layout = random_batch(seed)
    visible = int(layout.cache_positions.max()) + 1
    mask = layout.visible_mask(visible, reach)
    rows, columns = layout.token_ids.shape
    for row in range(rows):
        cached = int(layout.cached[row])
        texts = {position: position for position in range(cached)}  # by cache position
        columns_of = dict(zip(layout.cache_positions[row].tolist(), range(columns), strict=True))
        texts |= {at: int(layout.positions[row, column]) for at, column in columns_of.items()}
        for query in range(columns):
            position = int(layout.positions[row, query])
            for key, text in texts.items():
                seen = key < cached or bool(layout.block[row, query, columns_of[key]])
                is_near = (not reach.window or text > position - reach.window) and (
                    not reach.chunk or text // reach.chunk == position // reach.chunk
                )
                expected = seen and (is_near or bool(layout.padding[row, query]))
                assert mask[row, query, key] == expected
            assert not mask[row, query, cached + columns :].any()
