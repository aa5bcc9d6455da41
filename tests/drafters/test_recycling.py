"""Test recycled distributions, and the trees built from them, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline import DraftTree, Outcome, SamplingParams
from paceline.core.drafter import TopTokens
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, IntArray
from paceline.drafters import create
from paceline.drafters.shared.array_trees import ArrayTrees
from paceline.drafters.shared.draft_sources import (
    DRAFT_HEAD,
    DRAFT_MODEL,
    RETRIEVAL,
    DraftSource,
)
from paceline.drafters.shared.recycled import ABSENT, SuccessorTable, look_up, new_table
from paceline.drafters.shared.recycler import Recycler
from paceline.drafters.shared.source_calibration import (
    CELLS,
    new_source_calibration,
    pair_cell,
    weighed_cell,
)
from paceline.drafters.shared.step_learning import learn_step, record_of
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.drafters.shared.tree_candidate import CANDIDATE
from paceline.errors import ConfigError
from tests.support.kernels import from_python

_look_up, _pair_cell = from_python(look_up), from_python(pair_cell)
_weighed_cell = from_python(weighed_cell)

# the newest tokens -> the target's distribution after them
Distributions = dict[tuple[int, ...], list[tuple[int, float]]]


def store_top_tokens(
    table: SuccessorTable, newest: IntArray, keys: int, tree: DraftTree, top: TopTokens
) -> None:
    """Store the target's top tokens after each node of one request's tree."""
    record = as_ids(*record_of(newest.tolist(), tree, [], 0, 0))
    none: Any = np.empty(0, dtype=CANDIDATE)
    learn_step(table, new_source_calibration(), keys, record, none, top.token_ids, top.probs)


def draft_tree(
    made: Recycler,
    request: Request,
    max_nodes: int,
    least: float = 0.0,
    trees: Mapping[DraftSource, DraftTree] | None = None,
) -> DraftTree:
    """Return the tree of one request."""
    given = {source: ArrayTrees.of([tree]) for source, tree in (trees or {}).items()}
    (tree,) = made.draft([request], [max_nodes], least, given)
    return tree


def as_ids(*tokens: int) -> IntArray:
    return np.array(tokens, dtype=np.int64)


def top_tokens(rows: list[list[tuple[int, float]]]) -> TopTokens:
    width = max(map(len, rows))
    filled = [row + [(0, 0.0)] * (width - len(row)) for row in rows]
    return TopTokens(
        np.array([[token for token, _ in row] for row in filled], dtype=np.int64),
        np.array([[prob for _, prob in row] for row in filled], dtype=np.float32),
    )


def entry_of(table: Any, *newest: int, keys: int = LONGEST_KEY) -> tuple[list[int], int]:
    """Return the tokens of the longest known key's entry, and that key's length."""
    tail = np.zeros(LONGEST_KEY, dtype=np.int64)
    tail[LONGEST_KEY - len(newest) :] = newest
    place, size = _look_up(table, tail, min(keys, len(newest)))
    if place == ABSENT:
        return [], 0
    entry = table.entries[place]
    return entry["tokens"][entry["probs"] > 0].tolist(), size


def test_distributions_are_stored_under_all_key_lengths() -> None:
    table = new_table(64)
    distributions = top_tokens([[(7, 0.6), (9, 0.3)], [(4, 0.8)], [(5, 0.9)]])
    store_top_tokens(table, as_ids(1, 2), 3, DraftTree([7, 9], [-1, -1]), distributions)
    assert entry_of(table, 1, 2) == ([7, 9], 2)
    assert entry_of(table, 8, 2) == ([7, 9], 1)
    assert entry_of(table, 1, 2, 7) == ([4], 3)
    assert entry_of(table, 2, 9) == ([5], 2)
    assert entry_of(table, 3) == ([], 0)
    again = top_tokens([[(9, 0.7)]])
    store_top_tokens(table, as_ids(8, 2), 3, EMPTY_TREE, again)
    assert entry_of(table, 1, 2) == ([7, 9], 2)  # the longer key keeps its entry
    assert entry_of(table, 2) == ([9], 1)  # the newest distribution


def test_a_full_table_forgets_the_oldest() -> None:
    table = new_table(8)
    for token in range(100):
        distributions = top_tokens([[(token + 1, 0.9)]])
        store_top_tokens(table, as_ids(token), 1, EMPTY_TREE, distributions)
    assert entry_of(table, 99) == ([100], 1)
    assert sum(entry_of(table, token)[1] for token in range(100)) == 8


def test_lookup_uses_the_longest_key_in_use() -> None:
    table = new_table(64)
    distributions = top_tokens([[(7, 0.6)]])
    store_top_tokens(table, as_ids(1, 2, 3), 1, EMPTY_TREE, distributions)
    assert entry_of(table, 1, 2, 3, keys=3) == ([7], 1)


def recycler_with(distributions: Distributions, keys: int = 3) -> Recycler:
    made = Recycler(keys, rows=256)
    store_distributions(made, distributions, keys)
    return made


def store_distributions(made: Recycler, distributions: Distributions, keys: int = 3) -> None:
    for newest, row in distributions.items():
        top = top_tokens([row])
        store_top_tokens(made.table, as_ids(*newest), keys, EMPTY_TREE, top)


def test_likeliest_paths_of_both_sources_come_first() -> None:
    """Check the example of `merged_tree`."""
    made = recycler_with({(2,): [(7, 0.6), (9, 0.3)], (2, 7): [(5, 0.9)]})
    drafted = DraftTree([7, 4], [-1, 0], None, [0.8, 0.3])
    request = Request([1, 2], SamplingParams(max_new_tokens=8))
    tree = draft_tree(made, request, 8, 0.0, {RETRIEVAL: drafted})
    assert tree.token_ids[:2] == [7, 5]
    assert set(zip(tree.parents, tree.token_ids, strict=True)) == {(-1, 7), (0, 5), (-1, 9), (0, 4)}
    assert tree.confidence is not None
    paths: list[float] = []
    for parent, confidence in zip(tree.parents, tree.confidence, strict=True):
        paths.append(confidence * (paths[parent] if parent >= 0 else 1.0))
    assert paths == sorted(paths, reverse=True)
    assert len(draft_tree(made, request, 2, 0.0, {RETRIEVAL: drafted})) == 2
    assert len(draft_tree(made, request, 8, 0.5, {RETRIEVAL: drafted})) < 4
    assert draft_tree(made, request, 0, 0.0, {RETRIEVAL: drafted}) is EMPTY_TREE


def test_draft_model_probabilities_are_merged() -> None:
    """Check the confidences after a draft model predicted 9 and 3 below the root.

    9 rises, 7 falls and 3 is added; below 7 it did not run, so 5 stays as it was.
    """
    made = recycler_with({(2,): [(7, 0.6), (9, 0.3)], (2, 7): [(5, 0.9)]})
    request = Request([1, 2], SamplingParams(max_new_tokens=8))
    plain, joint = (
        draft_tree(made, request, 8),
        draft_tree(
            made, request, 8, 0.0, {DRAFT_MODEL: DraftTree([9, 3], [-1, -1], None, [0.9, 0.2])}
        ),
    )

    def confidences(tree: DraftTree) -> dict[int, float]:
        assert tree.confidence is not None
        return dict(zip(tree.token_ids, tree.confidence, strict=True))

    before, after = confidences(plain), confidences(joint)
    assert set(after) == {*before, 3}
    assert after[9] > before[9]
    assert after[7] < before[7]
    assert after[5] == before[5]
    counted = made.calibration.trials.copy()
    request.append([9])
    made.observe([Outcome(request, EMPTY_TREE, [], [9], [9], top_tokens([[(9, 0.9)]]))])
    assert (made.calibration.trials != counted).sum() == 5  # two cells each for 7 and 9, one for 3


@pytest.mark.parametrize(("has_model", "cells"), [(False, 3), (True, 5)])
def test_draft_head_and_draft_model_count_separately(has_model: bool, cells: int) -> None:
    """Check that a draft head is merged first, and a draft model with the result."""
    made = recycler_with({(2,): [(7, 0.6)]})
    request = Request([1, 2], SamplingParams(max_new_tokens=8))
    distributions = DraftTree([9], [-1], None, [0.6])
    model = replace(distributions, origins=[Origin.MODEL]) if has_model else EMPTY_TREE
    tree = draft_tree(
        made,
        request,
        8,
        0.0,
        {DRAFT_HEAD: replace(distributions, origins=[Origin.DRAFT_HEAD]), DRAFT_MODEL: model},
    )
    assert set(tree.origins or ()) == {
        Origin.RECYCLED,
        Origin.MODEL if has_model else Origin.DRAFT_HEAD,
    }
    counted = made.calibration.trials.copy()
    request.append([9])
    made.observe([Outcome(request, EMPTY_TREE, [], [9], [9], top_tokens([[(9, 0.9)]]))])
    (changed,) = np.nonzero(made.calibration.trials != counted)
    assert len(changed) == cells  # one cell more for 7 than for 9, which no other source has
    first = _weighed_cell(DRAFT_HEAD.calibration_table, False, 0.0, -1.0)
    assert first < changed[-2] < changed[-1] < CELLS


def test_agreement_of_sources_raises_confidence() -> None:
    made = recycler_with({(2,): [(7, 0.6)]})
    request = Request([1, 2], SamplingParams(max_new_tokens=8))
    seven, nine = (
        DraftTree([token], [-1], None, [0.6], origins=[Origin.MODEL]) for token in (7, 9)
    )
    confidences = [
        dict(zip(tree.token_ids, tree.confidence or (), strict=True))[7]
        for tree in (
            draft_tree(made, request, 8, 0.0, {DRAFT_HEAD: one, DRAFT_MODEL: other})
            for one in (nine, seven)
            for other in (nine, seven)
        )
    ]
    assert confidences[0] < min(confidences[1:3]) <= max(confidences[1:3]) < confidences[3]


def test_trees_are_no_deeper_than_the_remaining_answer() -> None:
    made = recycler_with({(2,): [(2, 0.9)]})
    tree = draft_tree(made, Request([2], SamplingParams(max_new_tokens=4)), 20)
    assert len(tree) == 3


def test_calibration_counts_fed_and_unfed_nodes() -> None:
    made = recycler_with({(2,): [(7, 0.6), (9, 0.3)], (7,): [(5, 0.6)]})
    request = Request([1, 2], SamplingParams(max_new_tokens=8))
    before = made.calibration.hits / made.calibration.trials
    draft_tree(made, request, 8)
    request.append([7, 3])
    made.observe([Outcome(request, EMPTY_TREE, [], [7, 3], [7], top_tokens([[(7, 0.9)]]))])
    after = made.calibration.hits / made.calibration.trials
    for probability, better in (
        (0.3, False),
        (0.6, True),
    ):  # of two guesses at 0.6 one was right, which is above their prior
        cell = _pair_cell(False, 1, probability, -1.0)
        assert (after[cell] > before[cell]) == better
    assert (after != before).sum() == 2


def test_sampled_requests_are_calibrated_separately() -> None:
    assert _pair_cell(False, 1, 0.5, -1.0) != _pair_cell(True, 1, 0.5, -1.0)
    made = recycler_with({(2,): [(7, 0.8), (9, 0.2)]})
    hot, cold = (
        draft_tree(
            made, Request([2], SamplingParams(max_new_tokens=9, temperature=heat)), 1
        ).confidence
        for heat in (5.0, 0.2)
    )
    assert hot is not None
    assert cold is not None
    assert hot[0] < cold[0]


def test_prior_is_zero_where_no_source_proposes() -> None:
    calibration = new_source_calibration()
    assert calibration.hits[_pair_cell(False, 0, 0.0, -1.0)] == 0
    assert (calibration.hits <= calibration.trials).all()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("token_recycling:max_context_ngram=9", "max_context_ngram: got 9"),
        ("token_recycling:max_distributions=0", "max_distributions: got 0"),
        ("auto:max_nodes=0", "max_nodes: got 0"),
        ("auto:min_path_probability=2", "min_path_probability: got 2"),
        ("auto:datastore=/nowhere", "nowhere"),
    ],
)
def test_options_out_of_range_are_refused(spec: str, words: str) -> None:
    from paceline.errors import PacelineError

    with pytest.raises(PacelineError, match=words) as caught:
        create(spec)
    assert "nowhere" in words or isinstance(caught.value, ConfigError)
