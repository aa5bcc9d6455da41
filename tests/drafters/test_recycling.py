"""Distributions that are kept, and trees grown from them, by hand."""

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

# the newest tokens -> what the target says then
Said = dict[tuple[int, ...], list[tuple[int, float]]]


def remember(
    table: SuccessorTable, newest: IntArray, keys: int, tree: DraftTree, top: TopTokens
) -> None:
    """Cache what the target said of one request's tree."""
    record = ids(*record_of(newest.tolist(), tree, [], 0, 0))
    none: Any = np.empty(0, dtype=CANDIDATE)
    learn_step(table, new_source_calibration(), keys, record, none, top.token_ids, top.probs)


def draft(
    made: Recycler,
    request: Request,
    max_nodes: int,
    least: float = 0.0,
    trees: Mapping[DraftSource, DraftTree] | None = None,
) -> DraftTree:
    """The tree of one request."""
    given = {source: ArrayTrees.of([tree]) for source, tree in (trees or {}).items()}
    (tree,) = made.draft([request], [max_nodes], least, given)
    return tree


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, dtype=np.int64)


def tops(rows: list[list[tuple[int, float]]]) -> TopTokens:
    width = max(map(len, rows))
    filled = [row + [(0, 0.0)] * (width - len(row)) for row in rows]
    return TopTokens(
        np.array([[token for token, _ in row] for row in filled], dtype=np.int64),
        np.array([[prob for _, prob in row] for row in filled], dtype=np.float32),
    )


def kept(table: Any, *newest: int, keys: int = LONGEST_KEY) -> tuple[list[int], int]:
    """Tokens of the entry of the longest key that is known, and its length."""
    tail = np.zeros(LONGEST_KEY, dtype=np.int64)
    tail[LONGEST_KEY - len(newest) :] = newest
    place, size = look_up(table, tail, min(keys, len(newest)))
    if place == ABSENT:
        return [], 0
    entry = table.entries[place]
    return entry["tokens"][entry["probs"] > 0].tolist(), size


def test_what_was_said_after_every_node_is_kept_under_keys_of_all_lengths() -> None:
    table = new_table(64)
    said = tops([[(7, 0.6), (9, 0.3)], [(4, 0.8)], [(5, 0.9)]])
    remember(table, ids(1, 2), 3, DraftTree([7, 9], [-1, -1]), said)
    assert kept(table, 1, 2) == ([7, 9], 2)
    assert kept(table, 8, 2) == ([7, 9], 1)
    assert kept(table, 1, 2, 7) == ([4], 3)
    assert kept(table, 2, 9) == ([5], 2)
    assert kept(table, 3) == ([], 0)
    again = tops([[(9, 0.7)]])
    remember(table, ids(8, 2), 3, EMPTY_TREE, again)
    assert kept(table, 1, 2) == ([7, 9], 2)  # the longer key still has what it had
    assert kept(table, 2) == ([9], 1)  # the newest


def test_a_full_table_forgets_the_oldest() -> None:
    table = new_table(8)
    for token in range(100):
        said = tops([[(token + 1, 0.9)]])
        remember(table, ids(token), 1, EMPTY_TREE, said)
    assert kept(table, 99) == ([100], 1)
    assert sum(kept(table, token)[1] for token in range(100)) == 8


def test_the_longest_key_in_use_bounds_what_is_looked_up() -> None:
    table = new_table(64)
    said = tops([[(7, 0.6)]])
    remember(table, ids(1, 2, 3), 1, EMPTY_TREE, said)
    assert kept(table, 1, 2, 3, keys=3) == ([7], 1)


def taught(said: Said, keys: int = 3) -> Recycler:
    made = Recycler(keys, rows=256)
    teach(made, said, keys)
    return made


def teach(made: Recycler, said: Said, keys: int = 3) -> None:
    for newest, row in said.items():
        top = tops([row])
        remember(made.table, ids(*newest), keys, EMPTY_TREE, top)


def test_the_likeliest_paths_come_first_from_both_sources() -> None:
    """The example of `merged_tree`."""
    made = taught({(2,): [(7, 0.6), (9, 0.3)], (2, 7): [(5, 0.9)]})
    drafted = DraftTree([7, 4], [-1, 0], None, [0.8, 0.3])
    request = Request([1, 2], SamplingParams(max_new_tokens=8))
    tree = draft(made, request, 8, 0.0, {RETRIEVAL: drafted})
    assert tree.token_ids[:2] == [7, 5]
    assert set(zip(tree.parents, tree.token_ids, strict=True)) == {(-1, 7), (0, 5), (-1, 9), (0, 4)}
    assert tree.confidence is not None
    paths: list[float] = []
    for parent, confidence in zip(tree.parents, tree.confidence, strict=True):
        paths.append(confidence * (paths[parent] if parent >= 0 else 1.0))
    assert paths == sorted(paths, reverse=True)
    assert len(draft(made, request, 2, 0.0, {RETRIEVAL: drafted})) == 2
    assert len(draft(made, request, 8, 0.5, {RETRIEVAL: drafted})) < 4
    assert draft(made, request, 0, 0.0, {RETRIEVAL: drafted}) is EMPTY_TREE


def test_what_a_draft_model_says_is_weighed_against_the_others() -> None:
    """Where it was asked: 9 rises, 7 falls, 3 comes; behind 7 it was not, and 5 keeps its
    chance.
    """
    made = taught({(2,): [(7, 0.6), (9, 0.3)], (2, 7): [(5, 0.9)]})
    request = Request([1, 2], SamplingParams(max_new_tokens=8))
    plain, joint = (
        draft(made, request, 8),
        draft(made, request, 8, 0.0, {DRAFT_MODEL: DraftTree([9, 3], [-1, -1], None, [0.9, 0.2])}),
    )

    def chances(tree: DraftTree) -> dict[int, float]:
        assert tree.confidence is not None
        return dict(zip(tree.token_ids, tree.confidence, strict=True))

    before, after = chances(plain), chances(joint)
    assert set(after) == {*before, 3}
    assert after[9] > before[9]
    assert after[7] < before[7]
    assert after[5] == before[5]
    counted = made.calibration.trials.copy()
    request.append([9])
    made.observe([Outcome(request, EMPTY_TREE, [], [9], [9], tops([[(9, 0.9)]]))])
    assert (made.calibration.trials != counted).sum() == 5  # of 7 and 9 two cells each, of 3 one


@pytest.mark.parametrize(("asked", "cells"), [(False, 3), (True, 5)])
def test_head_and_model_have_separate_counts(asked: bool, cells: int) -> None:
    """It comes before what a draft model says, which is weighed against both."""
    made = taught({(2,): [(7, 0.6)]})
    request = Request([1, 2], SamplingParams(max_new_tokens=8))
    said = DraftTree([9], [-1], None, [0.6])
    model = replace(said, origins=[Origin.MODEL]) if asked else EMPTY_TREE
    tree = draft(
        made,
        request,
        8,
        0.0,
        {DRAFT_HEAD: replace(said, origins=[Origin.DRAFT_HEAD]), DRAFT_MODEL: model},
    )
    assert set(tree.origins or ()) == {
        Origin.RECYCLED,
        Origin.MODEL if asked else Origin.DRAFT_HEAD,
    }
    counted = made.calibration.trials.copy()
    request.append([9])
    made.observe([Outcome(request, EMPTY_TREE, [], [9], [9], tops([[(9, 0.9)]]))])
    (changed,) = np.nonzero(made.calibration.trials != counted)
    assert len(changed) == cells  # of 7 one more than of 9, which nobody else has
    first = weighed_cell(DRAFT_HEAD.calibration_table, False, 0.0, -1.0)
    assert first < changed[-2] < changed[-1] < CELLS


def test_what_all_say_is_likelier_than_what_some_say() -> None:
    made = taught({(2,): [(7, 0.6)]})
    request = Request([1, 2], SamplingParams(max_new_tokens=8))
    seven, nine = (
        DraftTree([token], [-1], None, [0.6], origins=[Origin.MODEL]) for token in (7, 9)
    )
    chances = [
        dict(zip(tree.token_ids, tree.confidence or (), strict=True))[7]
        for tree in (
            draft(made, request, 8, 0.0, {DRAFT_HEAD: one, DRAFT_MODEL: other})
            for one in (nine, seven)
            for other in (nine, seven)
        )
    ]
    assert chances[0] < min(chances[1:3]) <= max(chances[1:3]) < chances[3]


def test_no_tree_is_deeper_than_the_answer_may_be_long() -> None:
    made = taught({(2,): [(2, 0.9)]})
    tree = draft(made, Request([2], SamplingParams(max_new_tokens=4)), 20)
    assert len(tree) == 3


def test_chances_are_counted_of_what_was_fed_and_of_what_was_not() -> None:
    made = taught({(2,): [(7, 0.6), (9, 0.3)], (7,): [(5, 0.6)]})
    request = Request([1, 2], SamplingParams(max_new_tokens=8))
    before = made.calibration.hits / made.calibration.trials
    draft(made, request, 8)
    request.append([7, 3])
    made.observe([Outcome(request, EMPTY_TREE, [], [7, 3], [7], tops([[(7, 0.9)]]))])
    after = made.calibration.hits / made.calibration.trials
    for probability, better in (
        (0.3, False),
        (0.6, True),
    ):  # of two guesses at 0.6 one came true, which is above their prior
        cell = pair_cell(False, 1, probability, -1.0)
        assert (after[cell] > before[cell]) == better
    assert (after != before).sum() == 2


def test_sampled_requests_have_chances_of_their_own() -> None:
    assert pair_cell(False, 1, 0.5, -1.0) != pair_cell(True, 1, 0.5, -1.0)
    made = taught({(2,): [(7, 0.8), (9, 0.2)]})
    hot, cold = (
        draft(made, Request([2], SamplingParams(max_new_tokens=9, temperature=heat)), 1).confidence
        for heat in (5.0, 0.2)
    )
    assert hot is not None
    assert cold is not None
    assert hot[0] < cold[0]


def test_the_prior_knows_nothing_of_what_nobody_offers() -> None:
    calibration = new_source_calibration()
    assert calibration.hits[pair_cell(False, 0, 0.0, -1.0)] == 0
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
