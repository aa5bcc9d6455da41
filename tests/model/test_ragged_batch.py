"""Test batches whose requests follow one another in a single row without padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.attention.reach import Reach
from paceline.backend.attention_metadata import mask_address, stand_in_mask
from paceline.core.drafter import Drafter
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.cpu.attention.invariant import attention_by_position
from paceline.errors import UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.padded_batch import PaddedBatch, lay_out
from paceline.model.ragged_batch import RaggedBatch, pack
from tests.support import models
from tests.support.attention import Columns, random_parents
from tests.support.shared import Pair

RAGGED = [(70, 1, 9), (0, 5, 0), (3, 2, 30), (140, 1, 0), (65, 7, 12), (4, 1, 1)]
REACHES = [Reach(), Reach(window=1), Reach(window=20), Reach(chunk=8), Reach(chunk=64)]


def both(
    rows: list[tuple[int, int, int]], seed: int = 0, min_rows: int = 1
) -> tuple[PaddedBatch, RaggedBatch]:
    """Return requests with random trees as a padded and as a packed batch.

    Rows are given as (cached, pending, nodes).
    """
    chance = np.random.default_rng(seed)
    requests, trees = [], []
    for slot, (cached, pending, nodes) in enumerate(rows):
        request = Request(chance.integers(1, 99, cached + pending).tolist(), SamplingParams())
        request.cached, request.slot = cached, slot + 3
        requests.append(request)
        trees.append(
            DraftTree(chance.integers(1, 99, nodes).tolist(), random_parents(chance, nodes))
        )
    return lay_out(requests, trees, 1 << 20), pack(requests, trees, 1 << 20, min_rows)


def queries(layout: PaddedBatch) -> list[tuple[int, int]]:
    """Return the rows and columns without padding, in packed order."""
    return [(row, column) for row, column in np.argwhere(~layout.padding).tolist()]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reach", REACHES)
def test_queries_see_the_keys_that_a_mask_allows(seed: int, reach: Reach) -> None:
    layout, packing = both(RAGGED, seed)
    visible, order = packing.visible(reach), packing.attention_metadata({})
    mask = layout.visible_mask(int(layout.cache_positions.max()) + 1, reach)
    for query, (row, column) in enumerate(queries(layout)):
        tail = order.tail[row]
        runs = visible.runs[visible.begin[query] : visible.begin[query + 1]].tolist()
        ordinals = [ordinal for start, stop, _ in runs for ordinal in range(start, stop)]
        cached = int(layout.cached[row])
        seen = [
            ordinal if ordinal < cached else int(tail[ordinal - cached]) for ordinal in ordinals
        ]
        assert sorted(seen) == np.flatnonzero(mask[row, column]).tolist()
        position = {
            int(place): int(at)
            for place, at in zip(layout.cache_positions[row], layout.positions[row], strict=True)
        }
        positions = [place if place < cached else position[place] for place in seen]
        assert positions == sorted(set(positions))  # in order, none twice
        assert [rank for *_, rank in runs] == np.cumsum(
            [0, *(stop - start for start, stop, _ in runs)]
        )[:-1].tolist()
        assert all(
            stop < start for (_, stop, _), (start, *_) in itertools.pairwise(runs)
        )  # none could be joined


@pytest.mark.parametrize("min_rows", [1, 100])
def test_arrays_equal_those_of_the_padded_batch(min_rows: int) -> None:
    layout, packing = both(RAGGED, min_rows=min_rows)
    real = len(queries(layout))
    for mine, theirs in (
        (packing.token_ids, layout.token_ids),
        (packing.positions, layout.positions),
        (packing.cache_positions, layout.cache_positions),
    ):
        assert mine[:real].tolist() == theirs[~layout.padding].tolist()
    assert packing.slots[:real].tolist() == [row + 3 for row, _ in queries(layout)]
    front = layout.token_ids.shape[1] - layout.width
    asked = [place for place, (_, column) in enumerate(queries(layout)) if column >= front - 1]
    assert packing.logit_queries[: len(asked)].tolist() == asked
    assert len(packing.logit_queries) == max(len(asked), min_rows)
    visible = packing.visible()
    assert visible.starts[-1] == len(packing.token_ids)
    assert visible.begin[real] == visible.begin[-1]  # padding sees nothing
    assert len(
        set(zip(packing.slots.tolist(), packing.cache_positions.tolist(), strict=True))
    ) == len(packing.token_ids)


@pytest.mark.parametrize("reach", REACHES[:3])
def test_attention_has_the_bits_of_the_padded_batch(reach: Reach) -> None:
    layout, packing = both(RAGGED)
    columns = Columns(layout, (6, 2, 64, 64), torch.bfloat16)
    rows = attention_by_position(
        columns.query, columns.key, columns.value, columns.mask(reach.window), columns.order
    )
    real = torch.from_numpy(~layout.padding)
    query = columns.query.transpose(1, 2)[real][None].transpose(1, 2)
    sign = stand_in_mask(query.shape[2], columns.visible, query.device)
    order = packing.attention_metadata({mask_address(sign): packing.visible(reach)})
    # a part of a stand-in mask has its address
    packed = attention_by_position(query, columns.key, columns.value, sign[:, :, 1:], order)
    assert torch.equal(packed[0], rows[real])


def test_foreign_mask_is_refused() -> None:
    packed, mask = both([(3, 1, 0)])[1], stand_in_mask(1, 4, torch.device("cpu"))
    order = packed.attention_metadata({mask_address(mask): packed.visible()})
    assert order.visible(mask, 1).columns == 1
    for other in (None, torch.ones(1, 1, 1, 4, dtype=torch.bool)):
        with pytest.raises(
            UnsupportedModelError,
            match="got a mask that the model itself made; expected the mask that the engine",
        ):
            order.visible(other, 1)


def test_model_computes_no_padding() -> None:
    fed: list[tuple[int, ...]] = []
    model = models.make("llama", "sdpa")
    lm = CachedLM(model, batch_invariant=True)
    hook = model.model.embed_tokens.register_forward_pre_hook(
        lambda module, inputs: fed.append(tuple(inputs[0].shape))
    )
    requests = [Request([1] * length, SamplingParams()) for length in (2, 9, 4)]
    for request in requests:
        lm.open(request)
    lm.feed(requests)
    for request in requests:
        request.token_ids.append(5)
    logits = lm.forward_nodes(requests, [DraftTree.chain([1] * count) for count in (0, 6, 1)])
    hook.remove()
    assert fed == [(1, 15), (1, 10)]
    assert logits.counts == [1, 7, 2]
    assert logits.flat.shape[0] == 10


def test_logits_of_nodes() -> None:
    flat = torch.arange(12.0).view(6, 2)
    ragged = NodeLogits(flat, [0, 1, 4], [1, 3, 2])
    assert len(ragged) == 3
    assert torch.equal(ragged[1], flat[1:4])
    padded = ragged.padded()
    assert padded.shape == (3, 3, 2)
    assert all(torch.equal(padded[row, : len(ragged[row])], ragged[row]) for row in range(3))
    assert torch.equal(ragged.select([2, 0])[0], flat[4:])
    even = NodeLogits(flat, [0, 3], [3, 3]).padded()
    assert even.data_ptr() == flat.data_ptr()  # no copy
    assert torch.equal(NodeLogits.from_padded(even.flatten(0, 1), [2, 1])[1], flat[3:4])
    assert NodeLogits(flat[:0], [], []).padded().shape == (0, 1, 2)


@pytest.mark.parametrize("spec", ["sssd", "auto", "lookahead", "draft_model"])
def test_answers_of_ragged_batches(pair: Pair, spec: Any) -> None:
    """Prompts of all lengths with small chunks and trees of a few nodes give plain answers."""
    model = pair.target
    drafted = LLM(
        model,
        spec,
        pair.draft if spec == "draft_model" else None,
        batch_invariant=True,
        max_batch=5,
    )
    drafted.model.prefill_chunk = 7
    outs = drafted.generate(pair.prompts, SamplingParams(max_new_tokens=40))
    assert [out.token_ids for out in outs] == pair.answers


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_number_of_whole_trees_is_tried(pair: Pair, batch_invariant: bool) -> None:
    class Whole(Drafter):
        budget = True

        def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
            asked.append(sum(map(bool, max_nodes)))
            return [DraftTree.chain([0] * min(4, limit)) for limit in max_nodes]

    asked: list[int] = []
    llm = LLM(pair.target, Whole(), max_batch=20, batch_invariant=batch_invariant)
    outs = llm.generate(
        (pair.prompts * 20)[:20], SamplingParams(max_new_tokens=40, ignore_eos=True)
    )
    assert len(outs) == 20
    assert max(asked) == (4 if batch_invariant else 20)
